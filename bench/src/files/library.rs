//! The client library without a mount: nodes by number, as a mount uses it.

use std::rc::Rc;
use std::sync::Arc;

use sealstone_client::Client as Sealstone;
use sealstone_client::nodes::{CreateParams, Nodes, NodesOptions};
use sealstone_mds_protocol::{Access, Name, Node, NodeKind, RenameMode};
use tokio::runtime::Runtime;

use super::folder::ServerGuard as _;
use super::job::{ClientJob, FileOperation, JobClient, PIECE, SMALL, Subject};
use super::system::System;
use crate::Outcome;

/// Each client has its own connections.
pub(crate) struct Library {
    pub(crate) system: Rc<System>,
    pub(crate) runtime: Arc<Runtime>,
}

impl Subject for Library {
    fn name(&self) -> &str {
        "library"
    }

    fn client(&self) -> Outcome<Box<dyn JobClient>> {
        let _inside = self.runtime.enter();
        let client = self.system.client()?;
        let nodes = Nodes::new(&client, NodesOptions::default());
        Ok(Box::new(LibraryClient {
            nodes,
            _client: client,
            directory: None,
            runtime: self.runtime.clone(),
            buffer: vec![0x5A; PIECE],
        }))
    }

    fn processes(&self) -> Vec<u32> {
        self.system.processes()
    }
}

/// A program that calls it.
struct LibraryClient {
    nodes: Nodes,
    _client: Sealstone,
    /// Its working directory.
    directory: Option<Node>,
    runtime: Arc<Runtime>,
    buffer: Vec<u8>,
}

fn create_params(what: NodeKind, mode: u16) -> CreateParams {
    CreateParams { what, mode, umask: 0, owner: None, group: None }
}

fn name(name: &str) -> Outcome<Name> {
    Name::new(name.as_bytes()).map_err(|error| error.to_string().into())
}

impl LibraryClient {
    fn at(&self) -> Outcome<Node> {
        self.directory.ok_or_else(|| "no directory was made".into())
    }

    async fn list(&self, job: &ClientJob) -> Outcome<u64> {
        let (mut found, mut after) = (0, None);
        loop {
            let (entries, more) = self.nodes.read_directory(self.at()?, after.take()).await?;
            found += entries.len() as u64;
            after = entries.last().map(|entry| entry.name.clone());
            if !more {
                break;
            }
        }
        match found == job.count {
            true => Ok(found),
            false => Err(format!("{found} of {} files are listed", job.count).into()),
        }
    }

    /// Creates a small file.
    async fn put(&self, file: &str, bytes: usize, durable: bool) -> Outcome {
        let (_, file) =
            self.nodes.create(self.at()?, &name(file)?, create_params(NodeKind::File, 0o644)).await?;
        if bytes > 0 {
            file.write(0, &self.buffer[..bytes]).await?;
        }
        if durable {
            file.sync().await?;
        }
        Ok(file.close().await?)
    }

    /// Writes a file of many pieces until the time limit; returns how many.
    fn stream(&self, job: &ClientJob) -> Outcome<u64> {
        let (at, wanted) = (self.at()?, name(&job.name(0))?);
        let made = self.nodes.create(at, &wanted, create_params(NodeKind::File, 0o644));
        let (_, file) = self.runtime.block_on(made)?;
        let done = job.each(|piece| {
            let write = file.write(piece * PIECE as u64, &self.buffer[..PIECE]);
            Ok(self.runtime.block_on(write).map(drop)?)
        })?;
        if job.step == FileOperation::WriteSync {
            self.runtime.block_on(file.sync())?;
        }
        self.runtime.block_on(file.close())?;
        Ok(done)
    }

    async fn get(&self, file: &str, pieces: u64, bytes: usize) -> Outcome {
        let stat = self.nodes.lookup(self.at()?, &name(file)?).await?;
        let (file, _) = self.nodes.open(stat.node(), Access::Read).await?;
        for piece in 0..pieces {
            let read = file.read(piece * bytes as u64, bytes).await?;
            if read.len() != bytes {
                return Err(format!("{} of {bytes} bytes are read", read.len()).into());
            }
        }
        Ok(())
    }
}

impl JobClient for LibraryClient {
    fn perform(&mut self, job: &ClientJob) -> Outcome<u64> {
        let runtime = self.runtime.clone();
        let wait = |work: &mut dyn FnMut(u64) -> Outcome| job.each(work);
        match job.step {
            FileOperation::MakeDirectory => {
                let (wanted, what) = (name(&job.directory)?, create_params(NodeKind::Directory, 0o755));
                let made = runtime.block_on(self.nodes.create_node(Node::ROOT, &wanted, what))?;
                self.directory = Some(made.node());
                Ok(1)
            }
            FileOperation::RemoveDirectory => {
                runtime.block_on(self.nodes.remove(Node::ROOT, &name(&job.directory)?, true))?;
                Ok(1)
            }
            FileOperation::Create => {
                wait(&mut |number| runtime.block_on(self.put(&job.name(number), 0, false)))
            }
            FileOperation::Stat => wait(&mut |number| {
                let wanted = name(&job.name(number))?;
                Ok(runtime.block_on(self.nodes.lookup(self.at()?, &wanted)).map(drop)?)
            }),
            FileOperation::List => runtime.block_on(self.list(job)),
            FileOperation::Rename => wait(&mut |number| {
                let (from, to) = (name(&job.name(number))?, name(&job.other_name(number))?);
                let at = self.at()?;
                Ok(runtime.block_on(self.nodes.rename((at, &from), (at, &to), RenameMode::Replace))?)
            }),
            FileOperation::Unlink => wait(&mut |number| {
                let wanted = name(&job.name(number))?;
                Ok(runtime.block_on(self.nodes.remove(self.at()?, &wanted, false))?)
            }),
            FileOperation::Put => {
                wait(&mut |number| runtime.block_on(self.put(&job.name(number), SMALL, job.durable)))
            }
            FileOperation::Get => wait(&mut |number| runtime.block_on(self.get(&job.name(number), 1, SMALL))),
            FileOperation::Write | FileOperation::WriteSync => self.stream(job),
            FileOperation::Read => {
                runtime.block_on(self.get(&job.name(0), job.count, PIECE))?;
                Ok(job.count)
            }
        }
    }
}
