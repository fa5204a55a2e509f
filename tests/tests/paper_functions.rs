//! Descriptor 0003h of the ASF paper: a client and a real device over a real connection.

use bytes::Bytes;
use sealstone_initiator::{OsdClient, OsdError, ScsiRequest, TargetUrl};
use sealstone_osd::cdb::{
    AttributeParameters, Cdb, ExecuteFunction, Options, SecurityParameters, Timestamps,
};
use sealstone_osd::continuation::Segment;
use sealstone_osd::function::paper::PaperRequest;
use sealstone_osd::function::{ExitReason, JobAction, JobRequest, JobState};
use sealstone_osd::{Capability, Command, Generation, ObjectId, SecurityMethod};

use crate::crash::raw_osd::{RawOsd, object_capability};

const PARTITION: u64 = 0x10000;
/// Its number exceeds the field of the paper.
const CODE: ObjectId = ObjectId::new(PARTITION, 0x7_0001_0000);
const DATA: ObjectId = ObjectId::new(PARTITION, 0x10001);
const OUTPUT: ObjectId = ObjectId::new(PARTITION, 0x10002);

/// Counts bytes of object 0 that are the argument, and writes the count to object 1.
const SOURCE: &str = r#"#include "osd.h"
int64_t osd_main(const osd_call *call) {
    char data[64], count = '0';
    const char *wanted = osd_arguments(call);
    int64_t length = osd_read(0, 0, data, sizeof data);
    if (length < 0) return length;
    for (int64_t i = 0; i < length; i++) count += data[i] == *wanted;
    if (call->object_count > 1) {
        int64_t written = osd_write(1, 0, &count, 1);
        if (written < 0) return written;
    }
    return osd_result(&count, 1);
}
"#;

struct PaperDevice {
    osd: RawOsd,
    url: TargetUrl,
    /// A client that may send the descriptor.
    client: OsdClient,
}

impl PaperDevice {
    async fn start(flags: &[&str]) -> Self {
        let flags = [&["--insecure-nosec"], flags].concat();
        let mut osd = RawOsd::init(&["--capacity", "64M"], &flags, PARTITION);
        let url = osd.serve();
        let client = RawOsd::client(&url, |options| options.paper_functions = true);
        client.create_partition(&osd.new_partition(PARTITION), PARTITION).await.expect("created");
        osd.store_function(&client, CODE, SOURCE).await;
        for object in [DATA, OUTPUT] {
            client.create(&osd.object(object), object).await.expect("created");
        }
        client.write(&osd.object(DATA), DATA, 0, Bytes::from_static(b"0110")).await.expect("written");
        Self { osd, url, client }
    }

    async fn run(
        &self,
        request: PaperRequest,
        objects: &[ObjectId],
    ) -> Result<(Vec<u8>, JobRequest), OsdError> {
        let data: Vec<_> = objects.iter().map(|object| self.osd.object(*object)).collect();
        let reply = self.client.execute_paper_function(&self.osd.object(CODE), CODE, request, &data).await?;
        let job = JobRequest { action: JobAction::Wait { timeout_ms: 20_000 }, job: reply.header.job };
        Ok((reply.inline, job))
    }

    /// Sends a segment without security; returns key, code and the byte of the segment in error.
    async fn refusal(&self, segment: &[u8]) -> (u8, u16, Option<(bool, u16)>) {
        let object = object_capability(CODE);
        let capability = Capability { method: SecurityMethod::NoSec, icv_algorithm: 0, ..object }.encode();
        let command = Command::ExecuteFunction(ExecuteFunction { object: CODE, allocation: 128 });
        let cdb = Cdb {
            generation: Generation::Osd2,
            command,
            options: Options::default(),
            timestamps: Timestamps::default(),
            attributes: AttributeParameters::NONE,
            capability,
            security: SecurityParameters::NONE,
            continuation_length: segment.len() as u32,
        };
        let response = self.client.raw(ScsiRequest {
            cdb: Bytes::copy_from_slice(&cdb.encode().expect("a CDB")),
            data_out: vec![Bytes::copy_from_slice(segment)],
            data_in_max: 128,
            ..ScsiRequest::default()
        });
        let response = response.await.expect("a response");
        assert_eq!(response.status, 2, "CHECK CONDITION");
        let sense = sealstone_scsi::Sense::parse(&response.sense).expect("sense data");
        let field = sense.field.map(|field| (field.in_cdb, field.byte));
        (sense.key.nibble(), sense.code.0, field)
    }
}

fn request() -> PaperRequest {
    PaperRequest {
        code_bundle: 0x1_0000,
        timeout_ms: 20_000,
        method: "count".into(),
        arguments: b"1".to_vec().into(),
    }
}

fn block_on(test: impl Future<Output = ()>) {
    tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime").block_on(test);
}

#[test]
fn paper_client_runs_functions_on_paper_device() {
    block_on(async {
        let device = PaperDevice::start(&["--paper-functions"]).await;
        let (result, _) = device.run(request(), &[DATA, OUTPUT]).await.expect("a run");
        assert_eq!(result, b"2");
        let written = device.client.read(&device.osd.object(OUTPUT), OUTPUT, 0, 1).await.expect("read");
        assert_eq!(written, b"2", "the second capability is handle 1");
        let later = PaperRequest { timeout_ms: 0, ..request() };
        let (_, wait) = device.run(later, &[DATA]).await.expect("an asynchronous job");
        let ended = device.client.function_job(&device.osd.object(CODE), CODE, wait).await.expect("a job");
        assert_eq!((ended.header.state, ended.header.exit), (JobState::Done, ExitReason::Success));
        // Without a capability there is no handle.
        let failed = device.run(request(), &[]).await.map(|(result, _)| result);
        assert_eq!(failed.expect("a function that failed"), b"");
        let other = PaperRequest { code_bundle: 0x1_0001, ..request() };
        let refused = device.run(other, &[DATA]).await.map(drop);
        assert!(matches!(refused, Err(OsdError::CodeMismatch)), "{refused:?}");
        let modern = RawOsd::client(&device.url, |_| ());
        let (function, data) = (device.osd.object(CODE), [device.osd.object(DATA)]);
        let unsent = modern.execute_paper_function(&function, CODE, request(), &data).await;
        assert!(matches!(unsent, Err(OsdError::PaperFunctionsOff)), "{unsent:?}");
    });
}

#[test]
fn device_without_profile_refuses_paper_descriptor() {
    block_on(async {
        let device = PaperDevice::start(&[]).await;
        let refused = device.run(request(), &[DATA]).await.map(drop);
        assert!(matches!(refused, Err(OsdError::NotImplemented(_))), "{refused:?}");
        let paper = Segment { paper_function: Some(request()), ..Segment::default() };
        let wire = paper.encode(0x8F91).expect("a segment");
        assert_eq!(device.refusal(&wire).await, (5, 0x2400, Some((false, 40))));
    });
}

#[test]
fn malformed_paper_descriptors_are_refused_by_field() {
    block_on(async {
        let device = PaperDevice::start(&["--paper-functions"]).await;
        let paper = Segment { paper_function: Some(request()), ..Segment::default() };
        let wire = paper.encode(0x8F91).expect("a segment");
        for (at, byte, field) in [
            (47, 0xFF, 40), // longer than the segment
            (51, 1, 48),    // CODE BUNDLE OBJECT_ID
            (52, 0xFF, 52), // timeout
            (57, 65, 56),   // length of the method
            (58, 1, 58),    // reserved
            (63, 2, 60),    // length of the arguments
            (64, 0xFF, 64), // method
        ] {
            let mut wrong = wire.clone();
            wrong[at] = byte;
            assert_eq!(device.refusal(&wrong).await, (5, 0x2400, Some((false, field))), "byte {at}");
        }
        let twice = [&wire[..], &wire[40..]].concat();
        assert_eq!(device.refusal(&twice).await, (5, 0x2400, Some((false, wire.len() as u16))));
        // The device still serves.
        assert_eq!(device.run(request(), &[DATA]).await.expect("a run").0, b"2");
    });
}
