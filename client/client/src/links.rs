//! Links, hard and symbolic, by path.

use sealstone_mds_protocol::{Name, Node, NodeKind, Request, Response, Stat, Target, shown, unshown};

use crate::client::file_path;
use crate::{Client, ClientError, Devices, Metadata};

/// The bytes that a text stands for, as names are shown: `\xNN` and `\\` are escapes, anything else is itself.
pub(crate) fn bytes_of(text: &str) -> Vec<u8> {
    unshown(text).unwrap_or_else(|| text.as_bytes().to_vec())
}

fn stat_of(answer: Response) -> Result<Stat, ClientError> {
    match answer {
        Response::Stat { stat } => Ok(stat),
        _ => Err(ClientError::OTHER_ANSWER),
    }
}

impl<M: Metadata, D: Devices> Client<M, D> {
    /// The directory of a path by number, and the last name.
    async fn place(&self, path: &str) -> Result<(Node, Name), ClientError> {
        let path = file_path(path)?;
        let malformed = sealstone_mds_protocol::WireError::Malformed("path");
        let (above, name) = path.split_last().ok_or(ClientError::Name(malformed))?;
        let above = stat_of(self.core.metadata.call(Request::Stat { path: above }).await?)?;
        Ok((above.node(), name))
    }

    /// Makes a symbolic link at `path` that leads to `target`, which need not exist.
    ///
    /// # Errors
    /// `Refused` with `Exists`, `NotFound` (the directory), `Denied` among others; `Name`.
    pub async fn symlink(&self, target: &str, path: &str) -> Result<Stat, ClientError> {
        let target = Target::new(bytes_of(target)).map_err(ClientError::Name)?;
        let (parent, name) = self.place(path).await?;
        let what = NodeKind::Symlink(target);
        let (mode, umask, owner, group, holder) = (0o777, 0, None, None, None);
        let request = Request::MakeNode { parent, name, what, mode, umask, owner, group, holder };
        stat_of(self.core.metadata.call(request).await?)
    }

    /// Gives a file another name; a symbolic link under the old name is itself what gets it.
    ///
    /// # Errors
    /// `Refused` with `Exists`, `NotFound`, `NotPermitted` (a directory) among others; `Name`.
    pub async fn link(&self, existing: &str, path: &str) -> Result<Stat, ClientError> {
        let node = self.lstat(existing).await?.node();
        let (parent, name) = self.place(path).await?;
        stat_of(self.core.metadata.call(Request::LinkNode { node, parent, name }).await?)
    }

    /// Where a symbolic link leads, as names are shown.
    ///
    /// # Errors
    /// `Refused` with `Invalid` for what is no link, `NotFound` among others.
    pub async fn read_link(&self, path: &str) -> Result<String, ClientError> {
        let node = self.lstat(path).await?.node();
        match self.core.metadata.call(Request::ReadLink { node }).await? {
            Response::Target { target } => Ok(shown(target.as_bytes()).into_owned()),
            _ => Err(ClientError::OTHER_ANSWER),
        }
    }

    /// Where the symbolic link that was listed leads, as names are shown.
    ///
    /// # Errors
    /// `Refused` with `Invalid` for what is no link, `Stale` if it is gone.
    pub async fn target_of(&self, stat: &Stat) -> Result<String, ClientError> {
        match self.core.metadata.call(Request::ReadLink { node: stat.node() }).await? {
            Response::Target { target } => Ok(shown(target.as_bytes()).into_owned()),
            _ => Err(ClientError::OTHER_ANSWER),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_target_is_shown_as_names_are() {
        for text in ["/a/b", "../x", "a//b/", ".", "/", r"a\xff/b\\c"] {
            let target = Target::new(bytes_of(text)).unwrap();
            assert_eq!(shown(target.as_bytes()), text);
        }
    }
}
