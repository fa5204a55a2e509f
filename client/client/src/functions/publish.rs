//! Storing function files.

use sealstone_mds_protocol::{Access, ChecksumKind, Method, Stat};
use sealstone_osd::function::attributes::FunctionAttributes;

use super::{FunctionDescription, FunctionError, describe};
use crate::client::file_path;
use crate::{Client, ClientError, Devices, Metadata, PutOptions, get, put};

/// Maximum bytes of code that a device runs.
pub const FUNCTION_CODE_MAX: usize = 64 << 20;
/// Permission bits that the owner of a function needs: the description is written to the stored
/// file, and `fn show` reads it.
const OWNER_MODE: u16 = 0o700;
/// Announced size of a function file: with it, the metadata server places the file in one object.
const ONE_OBJECT_BYTES: u64 = 512 * 1024;

/// How to store a function.
#[derive(Clone, Debug)]
pub struct FunctionPublication {
    /// The description; its digest is computed.
    pub description: FunctionDescription,
    /// Permission bits; those to execute decide about the right to run it.
    pub mode: u16,
    /// Whether it may replace an existing file.
    pub replace: bool,
    /// Security method for the objects; the server may require a stronger one.
    pub method: Method,
}

impl<M: Metadata, D: Devices> Client<M, D> {
    /// Stores code as a function file in one object, with its description.
    /// [`Client::copy_function`] makes the copies on other devices.
    ///
    /// # Errors
    /// `CodeTooLong`, `Description` for the mode among others; as [`Client::put`].
    pub async fn put_function(
        &self,
        path: impl AsRef<[u8]>,
        code: &[u8],
        publication: &FunctionPublication,
    ) -> Result<Stat, FunctionError> {
        let path = file_path(path)?;
        if code.len() > FUNCTION_CODE_MAX || code.is_empty() {
            let (length, max) = (code.len() as u64, FUNCTION_CODE_MAX as u64);
            return Err(FunctionError::CodeTooLong { length, max });
        }
        if publication.mode & OWNER_MODE != OWNER_MODE {
            let problem = "the owner needs all rights; use 700, or 755 for a function that all users run";
            return Err(FunctionError::Description { field: "mode", problem });
        }
        let digest = *blake3::hash(code).as_bytes();
        let description = FunctionAttributes { digest: Some(digest), ..publication.description.clone() };
        describe::check(&description)?;
        let options = PutOptions {
            size_hint: Some(ONE_OBJECT_BYTES.min(code.len() as u64)),
            mode: publication.mode,
            replace: publication.replace,
            method: publication.method,
            checksum: Some(ChecksumKind::Blake3),
            ..PutOptions::default()
        };
        let stat = put::put(&self.core, &path, code, options).await?;
        let (opened, objects) = get::open(&self.core, &path, Access::Describe, publication.method).await?;
        // Another client may have replaced the file meanwhile.
        if opened.inode != stat.inode || opened.checksum != stat.checksum {
            return Err(ClientError::Protocol("the function was replaced while it was stored").into());
        }
        for index in 0..objects.layout.width() {
            describe::write(&objects, index, &description).await?;
        }
        Ok(stat)
    }
}
