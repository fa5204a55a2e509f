//! `sealstone-function-abi`: entries of the submission ring and the header of the host's region.

use sealstone_function_abi::limits::{HEAP_BYTES, REQUEST_BYTES_MAX};
use sealstone_function_abi::{CallCode, HeapRange, RequestBody, SubmissionEntry, layout};
use zerocopy::{FromBytes as _, IntoBytes as _};

use crate::Target;
use crate::input::Input;

/// A real request of each code.
fn bodies() -> Vec<RequestBody> {
    let range = |length| HeapRange::new(1 << 20, length, HEAP_BYTES).expect("within the heap");
    let (data, buffer, object) = (range(4096), range(4096), 1);
    let bodies = vec![
        RequestBody::Read { object, offset: 7, buffer },
        RequestBody::Write { object, offset: 7, data },
        RequestBody::Append { object, data },
        RequestBody::Punch { object, offset: 7, length: 9 },
        RequestBody::Length { object },
        RequestBody::GetAttribute { object, page: 0x10000, number: 3, buffer },
        RequestBody::SetAttribute { object, page: 0x10000, number: 3, data },
        RequestBody::List { object, after: 5, buffer },
        RequestBody::Create { object },
        RequestBody::Remove { object },
        RequestBody::Flush { object },
        RequestBody::Result { data },
        RequestBody::Log { level: 3, data },
        RequestBody::Progress { done: 1, total: 2 },
        RequestBody::Return { status: -5 },
        RequestBody::Clear { object, offset: 7, length: 9 },
        RequestBody::CreateCollection { collection: 2 },
        RequestBody::RemoveCollection { collection: 2, force: true },
        RequestBody::AddMember { collection: 2, object },
        RequestBody::RemoveMember { collection: 2, object },
        RequestBody::IsMember { collection: 2, object },
    ];
    assert_eq!(bodies.len(), CallCode::ALL.len());
    bodies
}

fn seeds() -> Vec<Vec<u8>> {
    let entries = bodies().into_iter().map(|body| {
        let entry = SubmissionEntry::new(1, 2, &body);
        [&[0][..], entry.as_bytes()].concat()
    });
    entries.chain([[&[1][..], &layout::encode_header(HEAP_BYTES)].concat()]).collect()
}

fn entry(bytes: &[u8]) {
    let Ok((entry, _)) = SubmissionEntry::read_from_prefix(bytes) else { return };
    let Ok(body) = entry.parse(HEAP_BYTES) else { return };
    if let RequestBody::Read { buffer: data, .. }
    | RequestBody::Write { data, .. }
    | RequestBody::Append { data, .. }
    | RequestBody::GetAttribute { buffer: data, .. }
    | RequestBody::SetAttribute { data, .. }
    | RequestBody::List { buffer: data, .. }
    | RequestBody::Result { data }
    | RequestBody::Log { data, .. } = body
    {
        assert!(data.length() <= REQUEST_BYTES_MAX);
        assert!(data.offset() <= HEAP_BYTES - u64::from(data.length()));
    }
    assert_eq!(SubmissionEntry::new(entry.generation(), entry.cookie(), &body), entry);
}

fn ring(input: &[u8]) {
    let mut input = Input::new(input);
    if input.byte().is_multiple_of(2) {
        entry(input.rest());
    } else {
        let header = input.array();
        if let Some(heap_bytes) = layout::parse_header(header) {
            assert_eq!(layout::encode_header(heap_bytes), header);
        }
    }
}

pub(crate) const RING: Target = Target {
    name: "function-ring",
    about: "kind, then a submission entry or the host's header; within all limits, encodes as it parsed",
    run: ring,
    seeds,
    cost: 1,
    quarantine: None,
    covers: &["function-abi::SubmissionEntry::parse", "function-abi::layout::parse_header"],
};
