//! Opening a file by its path, through directories and symbolic links.

use bytes::{Bytes, BytesMut};
use sealstone_client::nodes::{CreateParams, File, Nodes};
use sealstone_client::{ClientError, FileKind, FilePath, Name, Stat};
use sealstone_mds_protocol::{Access, ErrorCode, Failure, Node, NodeChange, NodeKind};

use crate::file::READ_BYTES_MAX;

/// Maximum symbolic links in the resolution of one path, as in Linux.
const LINKS_MAX: u32 = 40;
/// Mode of a new file before `UMASK` is applied.
const FILE_MODE: u16 = 0o666;
/// Permission bits that a new file does not get: the client knows no umask of other machines.
const UMASK: u16 = 0o022;

/// How to open a file.
#[derive(Clone, Copy)]
pub(crate) struct OpenMode {
    pub(crate) write: bool,
    /// Creates a missing file.
    pub(crate) create: bool,
    /// Refuses an existing file.
    pub(crate) exclusive: bool,
    /// Removes the content of an existing file.
    pub(crate) truncate: bool,
}

/// The directory and last name of a path, after symbolic links were followed.
enum ResolvedPath {
    /// A node.
    Existing(Stat),
    /// A name without a node.
    Missing { parent: Node, name: Name },
}

/// Opens a file, and creates it if the mode permits that.
pub(crate) async fn open(nodes: &Nodes, path: &[u8], mode: OpenMode) -> Result<File, ClientError> {
    let access = if mode.write { Access::Update } else { Access::Read };
    let refuse = |code| ClientError::from(Failure::new(code, &String::from_utf8_lossy(path)));
    let stat = match resolve(nodes, path).await? {
        ResolvedPath::Existing(_) if mode.exclusive => return Err(refuse(ErrorCode::Exists)),
        ResolvedPath::Existing(stat) => stat,
        ResolvedPath::Missing { .. } if !mode.create => return Err(refuse(ErrorCode::NotFound)),
        ResolvedPath::Missing { parent, name } => {
            let params = CreateParams {
                what: NodeKind::File,
                mode: FILE_MODE,
                umask: UMASK,
                owner: None,
                group: None,
            };
            match nodes.create(parent, &name, params).await {
                Ok((_, file)) => return Ok(file),
                // Another client created it meanwhile.
                Err(ClientError::Refused(failure))
                    if failure.code == ErrorCode::Exists && !mode.exclusive =>
                {
                    nodes.lookup(parent, &name).await?
                }
                Err(error) => return Err(error),
            }
        }
    };
    if stat.kind == FileKind::Directory {
        return Err(refuse(ErrorCode::IsADirectory));
    }
    let (file, _) = nodes.open(stat.node(), access).await?;
    if mode.truncate {
        let change = NodeChange { size: Some(0), ..NodeChange::default() };
        nodes.set(stat.node(), change, true).await?;
    }
    Ok(file)
}

/// Reads a range of a file, found as by [`open`]. Negative offsets count from the end of the file,
/// and offsets beyond it are limited to it.
pub(crate) async fn read(
    nodes: &Nodes,
    path: &[u8],
    start: i64,
    end: Option<i64>,
) -> Result<Bytes, ClientError> {
    let mode = OpenMode { write: false, create: false, exclusive: false, truncate: false };
    let file = open(nodes, path, mode).await?;
    let size = file.size();
    let offset = |value: i64| match u64::try_from(value) {
        Ok(value) => value.min(size),
        Err(_) => size.saturating_sub(value.unsigned_abs()),
    };
    let (start, end) = (offset(start), end.map_or(size, offset));
    let mut remaining = usize::try_from(end.saturating_sub(start)).unwrap_or(usize::MAX);
    let first = file.read(start, remaining.min(READ_BYTES_MAX)).await?;
    remaining = remaining.saturating_sub(first.len());
    if first.is_empty() || remaining == 0 {
        return Ok(first);
    }
    let mut bytes = BytesMut::from(first);
    while remaining > 0 {
        let piece = file.read(start + bytes.len() as u64, remaining.min(READ_BYTES_MAX)).await?;
        if piece.is_empty() {
            // The file was truncated meanwhile.
            break;
        }
        bytes.extend_from_slice(&piece);
        remaining = remaining.saturating_sub(piece.len());
    }
    Ok(bytes.freeze())
}

/// Resolves a path and follows its symbolic links.
async fn resolve(nodes: &Nodes, path: &[u8]) -> Result<ResolvedPath, ClientError> {
    let path = FilePath::new(path).map_err(ClientError::Name)?;
    // Directories from the root to the current one, and the names that are not resolved yet, the
    // next one last.
    let mut directories = vec![Node::ROOT];
    let mut names: Vec<Vec<u8>> = path.names().rev().map(|name| name.as_bytes().to_vec()).collect();
    let mut links = 0;
    while let Some(name) = names.pop() {
        let current = *directories.last().expect("the root stays");
        match name.as_slice() {
            b"" | b"." => continue,
            b".." => {
                if directories.len() > 1 {
                    directories.pop();
                }
                continue;
            }
            _ => {}
        }
        let name = Name::new(name).map_err(ClientError::Name)?;
        let stat = match nodes.lookup(current, &name).await {
            Err(error) if error.is_not_found() && names.is_empty() => {
                return Ok(ResolvedPath::Missing { parent: current, name });
            }
            outcome => outcome?,
        };
        if stat.kind == FileKind::Symlink {
            links += 1;
            if links > LINKS_MAX {
                return Err(Failure::new(ErrorCode::Loop, &path.shown()).into());
            }
            let target = nodes.read_link(stat.node()).await?;
            let target = target.as_bytes();
            if target.starts_with(b"/") {
                directories.truncate(1);
            }
            names.extend(target.rsplit(|byte| *byte == b'/').map(<[u8]>::to_vec));
        } else if names.is_empty() {
            return Ok(ResolvedPath::Existing(stat));
        } else {
            directories.push(stat.node());
        }
    }
    let last = directories.pop().expect("the root stays");
    Ok(ResolvedPath::Existing(nodes.node(last).await?))
}
