//! Collections and cleared ranges of a function: a client and a real device over a real connection.

use bytes::Bytes;
use sealstone_initiator::{CollectionOperation, Operation, OsdClient};
use sealstone_osd::function::{ApiVersion, ExitReason, FunctionObject, RunRequest};
use sealstone_osd::{AttributeId, ObjectId, ObjectType, Permissions};

use crate::crash::raw_osd::RawOsd;

const PARTITION: u64 = 0x10000;
const CODE: ObjectId = ObjectId::new(PARTITION, 0x10000);
const DATA: ObjectId = ObjectId::new(PARTITION, 0x10001);

/// Creates a collection through object 0, adds object 1 to it, and clears a range of object 1.
/// Returns the number of the collection.
const SOURCE: &str = r#"#include "osd.h"
int64_t osd_main(const osd_call *call) {
    uint64_t number = 0;
    int64_t made = osd_create_collection(0, &number);
    if (made < 0) return made;
    int64_t error = osd_add_member(made, 1);
    if (error == 0) error = osd_clear(1, 2, 3);
    if (error == 0) error = osd_flush(made);
    return error < 0 ? error : osd_result(&number, sizeof number);
}
"#;

/// Runs the function; returns the collection, or the error of the function.
async fn run(
    osd: &RawOsd,
    client: &OsdClient,
    of_collection: Permissions,
    commit_on_success: bool,
) -> Result<ObjectId, i32> {
    let new = ObjectId::of_partition(PARTITION);
    let request = RunRequest {
        engine: None,
        secret_arguments: false,
        commit_on_success,
        input_digests: false,
        timeout_ms: 20_000,
        api: ApiVersion::FIRST,
        digest: None,
        method: String::new(),
        arguments: Vec::new().into(),
        objects: vec![
            FunctionObject { object: new, kind: ObjectType::Collection, rights: of_collection },
            FunctionObject {
                object: DATA,
                kind: ObjectType::User,
                rights: Permissions::WRITE | Permissions::SET_ATTR,
            },
        ],
        result_entry: false,
        job: None,
    };
    let bearers = [osd.collection(new), osd.object(DATA)];
    let reply = client.execute_function(&osd.object(CODE), CODE, request, &bearers).await.expect("a run");
    if reply.header.exit != ExitReason::Success {
        return Err(reply.header.error);
    }
    let number = u64::from_le_bytes(reply.inline.try_into().expect("a number"));
    Ok(ObjectId::new(PARTITION, number))
}

#[test]
fn function_changes_survive_crash_of_device() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    runtime.block_on(async {
        let mut osd = RawOsd::init(&["--capacity", "64M"], &[], PARTITION);
        let client = osd.start();
        client.create_partition(&osd.new_partition(PARTITION), PARTITION).await.expect("created");
        osd.store_function(&client, CODE, SOURCE).await;
        client.create(&osd.object(DATA), DATA).await.expect("created");
        let content = Bytes::from_static(b"0123456789");
        client.write(&osd.object(DATA), DATA, 0, content.clone()).await.expect("written");
        let rights = Permissions::CREATE | Permissions::SET_ATTR | Permissions::OBJ_MGMT;
        let denied = run(&osd, &client, rights.without(Permissions::SET_ATTR), true).await;
        assert_eq!(denied, Err(-13), "EACCES");
        let staged = run(&osd, &client, rights, true).await.expect("a staged run");
        client.write(&osd.object(DATA), DATA, 0, content).await.expect("written");
        let direct = run(&osd, &client, rights, false).await.expect("a run");
        osd.kill();
        let client = osd.start();
        for (slot, collection) in [(1, staged), (2, direct)] {
            let list = CollectionOperation::List { collection, from: 0, ids_max: 9 };
            let done = client.execute(&osd.collection(collection), Operation::Collection(list)).await;
            assert_eq!(done.expect("listed").listed.expect("a list").ids, [DATA.object]);
            let id = AttributeId::new(4, slot);
            let found = client.attributes(&osd.object(DATA), DATA, vec![id]).await.expect("attributes");
            assert_eq!(found, [(id, Some(Bytes::copy_from_slice(&collection.object.to_be_bytes())))]);
        }
        let bytes = client.read(&osd.object(DATA), DATA, 0, 10).await.expect("read");
        assert_eq!(bytes, b"01\0\0\x0056789");
    });
}
