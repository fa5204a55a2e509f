//! Rights in the credentials of files, and the security methods of the OSD standard.
//!
//! Source of truth: docs/standards/mds/layouts.md (rights).

use sealstone_mds_protocol::{FILE_SIZE_MAX, Method};
use sealstone_osd::capability::Range;
use sealstone_osd::{Permissions, SecurityMethod};

/// A range in which an object has no bytes: length 0 would permit all of them.
pub(crate) const NO_BYTES: Range = Range { start: FILE_SIZE_MAX, length: 1 };

/// Rights to the objects of a file opened for reading.
pub(crate) const READ_RIGHTS: Permissions = Permissions::READ;
/// Rights to the objects of a create. FLUSH needs OBJ_MGMT. GET_ATTR lets a client check before
/// Commit whether the device has restarted since its first write.
pub(crate) const CREATE_RIGHTS: Permissions =
    Permissions::CREATE.union(Permissions::WRITE).union(Permissions::GET_ATTR).union(Permissions::OBJ_MGMT);
/// Rights to the objects of a file opened for update.
pub(crate) const UPDATE_RIGHTS: Permissions = READ_RIGHTS.union(WRITE_RIGHTS);
/// Right to run a function. GET_ATTR lets a client compare the description of the code.
pub(crate) const EXECUTE_RIGHTS: Permissions = Permissions::EXECUTE.union(Permissions::GET_ATTR);
/// Rights of a function to objects that it may read.
pub(crate) const CALL_READ_RIGHTS: Permissions = READ_RIGHTS.union(Permissions::GET_ATTR);
/// Rights to describe the code in an object. With OBJ_MGMT besides SET_ATTR, a client could set the
/// quota of the object, so the description is made durable without FLUSH.
pub(crate) const DESCRIBE_RIGHTS: Permissions = Permissions::GET_ATTR.union(Permissions::SET_ATTR);
/// Rights to a new copy of a function, and to describe it.
pub(crate) const COPY_RIGHTS: Permissions = CREATE_RIGHTS.union(Permissions::SET_ATTR);
/// Rights to the object for a result of a function: a device creates and writes it, and the client
/// reads it.
pub(crate) const RESULT_RIGHTS: Permissions = CREATE_RIGHTS.union(READ_RIGHTS);
/// Rights to the objects of a file opened for writing only.
pub(crate) const WRITE_RIGHTS: Permissions =
    Permissions::WRITE.union(Permissions::GET_ATTR).union(Permissions::OBJ_MGMT);

/// Converts the method of a message to that of the OSD standard.
#[must_use]
pub const fn security_method(method: Method) -> SecurityMethod {
    match method {
        Method::NoSec => SecurityMethod::NoSec,
        Method::CapKey => SecurityMethod::CapKey,
        Method::CmdRsp => SecurityMethod::CmdRsp,
        Method::AllData => SecurityMethod::AllData,
    }
}
