//! The commands, one line each; the enum, its dispatch and the table derive from these lines.

use super::flush::{Flush, FlushContainer};
use super::function::ExecuteFunction;
use super::keys::{SetKey, SetMasterKey};
use super::operands::{
    Append, CopyObjects, Create, CreatePartition, CreateTracking, Duplicate, Extent, FormatOsd, List,
    Members, Operands, PerformScsi, PerformTask, Query, ReadMap, RemoveCollection, RemovePartition, Target,
};
use super::rewrite::Rewrite;
use super::wire::CdbWire;
use crate::capability::Range;
use crate::table::{ByteRule, Continuation, ServiceAction, Support, Transfer};
use crate::{ObjectId, ObjectType, Permissions};

/// Returns a code of the table; 0 means "does not exist".
const fn code(code: u16) -> Option<u16> {
    if code == 0 { None } else { Some(code) }
}

macro_rules! commands {
    ($(
        $variant:ident($operands:ident) = $name:literal, $osd1:literal / $osd2:literal, $support:ident,
        [$($object:ident)+], $($permission:ident)|+ => $deep:ident, $transfer:ident, $continuation:ident, $bytes:ident;
    )*) => {
        /// A service action with its operands.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum Command {
            $(#[doc = concat!($name, ".")] $variant($operands),)*
        }

        /// A service action without operands: the index of its row.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[repr(u8)]
        pub enum Action {
            $(#[doc = concat!($name, ".")] $variant,)*
        }

        /// Every service action of both generations, in the order of [`Action`].
        pub static SERVICE_ACTIONS: &[ServiceAction] = &[$(ServiceAction {
            action: Action::$variant,
            name: $name,
            osd1: code($osd1),
            osd2: code($osd2),
            support: Support::$support,
            objects: &[$(ObjectType::$object),+],
            permissions: Permissions::NONE$(.union(Permissions::$permission))+,
            deep_permissions: Permissions::$deep,
            transfer: Transfer::$transfer,
            continuation: Continuation::$continuation,
            bytes: ByteRule::$bytes,
            read: |wire| $operands::read(wire).map(Command::$variant),
        }),*];

        impl Command {
            /// Returns the service action.
            #[must_use]
            pub const fn action(&self) -> Action {
                match self { $(Self::$variant(_) => Action::$variant,)* }
            }

            /// Writes the operands into bytes 10–51.
            pub(crate) fn write(&self, wire: &mut CdbWire) {
                match self { $(Self::$variant(operands) => operands.write(wire),)* }
            }

            /// Returns the addressed object; number 0 where a create lets the device choose.
            #[must_use]
            pub fn object(&self) -> ObjectId {
                match self { $(Self::$variant(operands) => operands.object(),)* }
            }

            /// Returns the touched bytes of the object, as far as the CDB specifies them.
            #[must_use]
            pub fn range(&self) -> Option<Range> {
                match self { $(Self::$variant(operands) => operands.range(),)* }
            }

            fn deep(&self) -> bool {
                match self { $(Self::$variant(operands) => operands.deep(),)* }
            }

            fn besides(&self) -> Permissions {
                match self { $(Self::$variant(operands) => operands.besides(),)* }
            }

            fn sizes(&self) -> (u64, u64) {
                match self { $(Self::$variant(operands) => operands.sizes(),)* }
            }
        }
    };
}

// name, OSD-1 / OSD-2 code, support, object types, permissions => additional ones if deep, data,
// bytes 48-51, byte rule
commands! {
    ObjectStructureCheck(Target) = "OBJECT STRUCTURE CHECK", 0 / 0x8880, Mandatory, [Root Partition], OBJ_MGMT => NONE, None, Refused, None;
    FormatOsd(FormatOsd) = "FORMAT OSD", 0x8801 / 0x8881, Optional, [Root], OBJ_MGMT | GLOBAL => NONE, None, Refused, None;
    Create(Create) = "CREATE", 0x8802 / 0x8882, Mandatory, [User], CREATE => NONE, None, Refused, None;
    List(List) = "LIST", 0x8803 / 0x8883, Mandatory, [Root Partition], READ => NONE, In, NotThere, None;
    Punch(Extent) = "PUNCH", 0 / 0x8884, Mandatory, [User], WRITE => NONE, None, Refused, Tail;
    Read(Extent) = "READ", 0x8805 / 0x8885, Mandatory, [User], READ => NONE, In, ScatterGather, Extent;
    Write(Extent) = "WRITE", 0x8806 / 0x8886, Mandatory, [User], WRITE => NONE, Out, ScatterGather, Extent;
    Append(Append) = "APPEND", 0x8807 / 0x8887, Mandatory, [User], APPEND => NONE, Out, Refused, AtEnd;
    Flush(Flush) = "FLUSH", 0x8808 / 0x8888, Mandatory, [User], OBJ_MGMT => NONE, None, Refused, Extent;
    Clear(Extent) = "CLEAR", 0 / 0x8889, Mandatory, [User], WRITE => NONE, None, Refused, Extent;
    Remove(Target) = "REMOVE", 0x880A / 0x888A, Mandatory, [User], REMOVE => NONE, None, Refused, Whole;
    CreatePartition(CreatePartition) = "CREATE PARTITION", 0x880B / 0x888B, Mandatory, [Partition], CREATE => NONE, None, Refused, None;
    RemovePartition(RemovePartition) = "REMOVE PARTITION", 0x880C / 0x888C, Mandatory, [Partition], REMOVE => GBL_REM, None, Refused, None;
    GetAttributes(Target) = "GET ATTRIBUTES", 0x880E / 0x888E, Mandatory, [Root Partition Collection User], GET_ATTR => NONE, None, Refused, None;
    SetAttributes(Target) = "SET ATTRIBUTES", 0x880F / 0x888F, Mandatory, [Root Partition Collection User], SET_ATTR => NONE, None, Refused, None;
    CreateAndWrite(Extent) = "CREATE AND WRITE", 0x8812 / 0x8892, Mandatory, [User], CREATE | WRITE => NONE, Out, ScatterGather, Extent;
    CopyUserObjects(CopyObjects) = "COPY USER OBJECTS", 0 / 0x8893, Optional, [User], CREATE | WRITE => NONE, None, CopySource, Whole;
    CreateTrackingCollection(CreateTracking) = "CREATE USER TRACKING COLLECTION", 0 / 0x8894, Collections, [Collection], CREATE => NONE, None, Extensions, None;
    CreateCollection(Target) = "CREATE COLLECTION", 0x8815 / 0x8895, Collections, [Collection], CREATE => NONE, None, Refused, None;
    RemoveCollection(RemoveCollection) = "REMOVE COLLECTION", 0x8816 / 0x8896, Collections, [Collection], REMOVE => NONE, None, Refused, None;
    ListCollection(List) = "LIST COLLECTION", 0x8817 / 0x8897, Collections, [Collection Partition], READ => NONE, In, NotThere, None;
    SetKey(SetKey) = "SET KEY", 0x8818 / 0x8898, Mandatory, [Root Partition], POL_SEC => NONE, None, NotThere, None;
    SetMasterKey(SetMasterKey) = "SET MASTER KEY", 0x8819 / 0x8899, Mandatory, [Root], POL_SEC | DEV_MGMT => NONE, Both, Refused, None;
    FlushCollection(FlushContainer) = "FLUSH COLLECTION", 0x881A / 0x889A, Collections, [Collection], OBJ_MGMT => NONE, None, Refused, None;
    FlushPartition(FlushContainer) = "FLUSH PARTITION", 0x881B / 0x889B, Mandatory, [Partition], OBJ_MGMT => NONE, None, Refused, None;
    FlushOsd(FlushContainer) = "FLUSH OSD", 0x881C / 0x889C, Mandatory, [Root], OBJ_MGMT => NONE, None, Refused, None;
    Query(Query) = "QUERY", 0 / 0x88A0, Collections, [Collection], QUERY => NONE, In, Query, None;
    RemoveMemberObjects(Members) = "REMOVE MEMBER OBJECTS", 0 / 0x88A1, Collections, [Collection], M_OBJECT | REMOVE => NONE, None, Refused, None;
    GetMemberAttributes(Members) = "GET MEMBER ATTRIBUTES", 0 / 0x88A2, Collections, [Collection], M_OBJECT | GET_ATTR => NONE, None, Refused, None;
    SetMemberAttributes(Members) = "SET MEMBER ATTRIBUTES", 0 / 0x88A3, Collections, [Collection], M_OBJECT | SET_ATTR => NONE, None, Refused, None;
    CreateClone(Duplicate) = "CREATE CLONE", 0 / 0x88A8, Optional, [Partition], CREATE => NONE, None, Refused, None;
    CreateSnapshot(Duplicate) = "CREATE SNAPSHOT", 0 / 0x88A9, Optional, [Partition], CREATE => NONE, None, Refused, None;
    DetachClone(Duplicate) = "DETACH CLONE", 0 / 0x88AA, Optional, [Partition], OBJ_MGMT => NONE, None, Refused, None;
    RefreshSnapshotOrClone(Duplicate) = "REFRESH SNAPSHOT OR CLONE", 0 / 0x88AB, Optional, [Partition], OBJ_MGMT => NONE, None, Refused, None;
    RestorePartition(Duplicate) = "RESTORE PARTITION FROM SNAPSHOT", 0 / 0x88AC, Optional, [Partition], OBJ_MGMT => NONE, None, Refused, None;
    ReadMap(ReadMap) = "READ MAP", 0 / 0x88B1, Mandatory, [User], READ => NONE, In, NotThere, Tail;
    ReadMapsAndCompare(ReadMap) = "READ MAPS AND COMPARE", 0 / 0x88B2, Optional, [User], READ => NONE, In, NotThere, Tail;
    PerformScsi(PerformScsi) = "PERFORM SCSI COMMAND", 0x8F7E / 0x8F7C, Mandatory, [Root Partition Collection User], DEV_MGMT => NONE, Both, Refused, None;
    PerformTask(PerformTask) = "PERFORM TASK MANAGEMENT FUNCTION", 0x8F7F / 0x8F7D, Mandatory, [Root Partition Collection User], DEV_MGMT => NONE, In, Refused, None;
    Rewrite(Rewrite) = "REWRITE", 0 / 0x8F90, Optional, [User], WRITE => READ, Both, Rewrite, Extent;
    ExecuteFunction(ExecuteFunction) = "EXECUTE FUNCTION", 0 / 0x8F91, Optional, [User], EXECUTE => NONE, In, Function, None;
}

/// Bytes that an allowed range must cover.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BytesNeeded {
    /// No bytes.
    None,
    /// This range.
    Range(Range),
    /// This many bytes from the logical length on.
    AtEnd(u64),
}

impl Command {
    /// Returns the row of the table.
    #[must_use]
    pub fn row(&self) -> &'static ServiceAction {
        &SERVICE_ACTIONS[self.action() as usize]
    }

    /// Returns the permitted types of the addressed object: one, or user object and collection
    /// where only the device knows which.
    #[must_use]
    pub fn object_types(&self) -> &'static [ObjectType] {
        let all = self.row().objects;
        let object = self.object();
        let wanted: &'static [ObjectType] = match all {
            [_] => return all,
            _ if object.is_root() => &[ObjectType::Root],
            _ if object.is_partition() => &[ObjectType::Partition],
            _ if all.contains(&ObjectType::User) => &[ObjectType::Collection, ObjectType::User],
            _ => &[ObjectType::Collection],
        };
        if wanted.iter().all(|kind| all.contains(kind)) { wanted } else { all }
    }

    /// Returns the bytes of the object that the allowed range of a capability must cover, if the
    /// row's rule determines them without the object's length.
    #[must_use]
    pub fn bytes_needed(&self) -> BytesNeeded {
        let named = self.range();
        match self.row().bytes {
            ByteRule::None => BytesNeeded::None,
            ByteRule::Extent => named.map_or(BytesNeeded::None, BytesNeeded::Range),
            ByteRule::AtEnd => BytesNeeded::AtEnd(self.sizes().0),
            ByteRule::Tail => {
                let start = named.map_or(0, |named| named.start);
                BytesNeeded::Range(Range { start, length: u64::MAX - start })
            }
            ByteRule::Whole => BytesNeeded::Range(Range { start: 0, length: u64::MAX }),
        }
    }

    /// Returns the permissions that the command itself needs; attribute parameters need additional
    /// ones.
    #[must_use]
    pub fn permissions(&self) -> Permissions {
        let row = self.row();
        let needed = row.permissions | self.besides();
        if self.deep() { needed | row.deep_permissions } else { needed }
    }

    /// Whether it has IMMED_TR: it can return status at once and continue, with its progress in a
    /// tracking collection.
    #[must_use]
    pub const fn can_be_tracked(&self) -> bool {
        matches!(
            self,
            Self::Query(_)
                | Self::RemoveMemberObjects(_)
                | Self::GetMemberAttributes(_)
                | Self::SetMemberAttributes(_)
                | Self::CopyUserObjects(_)
                | Self::CreateTrackingCollection(_)
        )
    }

    /// Returns the bytes of command data in the Data-Out Buffer.
    #[must_use]
    pub fn data_out_len(&self) -> u64 {
        match self.row().transfer {
            Transfer::Out | Transfer::Both => self.sizes().0,
            Transfer::None | Transfer::In => 0,
        }
    }

    /// Returns the maximum bytes of command data in the Data-In Buffer.
    #[must_use]
    pub fn data_in_len(&self) -> u64 {
        match self.row().transfer {
            Transfer::In | Transfer::Both => self.sizes().1,
            Transfer::None | Transfer::Out => 0,
        }
    }
}
