//! The native half of the Python package: an embedded cluster, a client, and open files.
//!
//! Does: runs requests on a runtime of its own, without the interpreter lock, and converts errors.
//! Does not: implement Python protocols such as `io.RawIOBase`; the Python half of the package
//! does.
//! Contract: a call that waits releases the interpreter lock and ends early at a signal. Objects
//! are bound to the process that created them, because threads do not survive a fork.
//! Truth: docs/adr/0086-embedded-clusters.md, docs/adr/0091-asyncio-and-fsspec.md;
//! `python/sealstone/_native.pyi`.

mod client;
mod cluster;
mod errors;
mod event_loop;
mod file;
mod limits;
mod operation;
mod paths;
mod results;
mod runtime;
mod upload;

use pyo3::prelude::*;

/// The module `sealstone._native`.
#[pymodule]
mod _native {
    #[pymodule_export]
    use crate::client::{NativeClient, connect_with_key, connect_with_password, read_cluster_file};
    #[pymodule_export]
    use crate::cluster::NativeCluster;
    #[pymodule_export]
    use crate::event_loop::NativeLoop;
    #[pymodule_export]
    use crate::file::NativeFile;
    #[pymodule_export]
    use crate::operation::NativeOperation;
    #[pymodule_export]
    use crate::upload::NativeUpload;
}
