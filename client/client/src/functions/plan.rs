//! Which object is given to which job of a call.
//!
//! Does: groups the objects of files by device. It is a pure function of layouts and sizes.
//! Contract: the plan has each object with bytes exactly once. A job has at most [`OBJECTS_MAX`]
//! objects, all on its device.

use core::ops::Range;
use std::collections::BTreeMap;

use sealstone_mds_protocol::{DeviceId, Layout};
use sealstone_osd::function::OBJECTS_MAX;

/// A file of a call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CallFile {
    /// Path of the file, without escapes.
    pub path: Vec<u8>,
    /// Whether the function may change existing bytes.
    pub update: bool,
}

/// How objects are distributed over jobs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum CallGrouping {
    /// A job for each file and device.
    #[default]
    PerFile,
    /// A job for each device with the objects of all files.
    PerDevice,
}

/// An object of a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CallPart {
    /// Number of the file in the call.
    pub file: usize,
    /// Index of the object in the layout of the file.
    pub index: usize,
    /// Stripe unit in bytes; none if the file is one object.
    pub unit: Option<u32>,
    /// Number of objects of the file.
    pub width: usize,
    /// Size of the file in bytes.
    pub size: u64,
}

impl CallPart {
    /// Returns the value of the argument `stripe.N`; none if the file is one object.
    #[must_use]
    pub fn geometry(&self) -> Option<String> {
        self.unit.map(|unit| format!("{unit},{},{},{}", self.width, self.index, self.size))
    }
}

/// Objects of one job.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct PlannedJob {
    pub(super) device: DeviceId,
    pub(super) parts: Vec<CallPart>,
}

/// Returns the jobs of files with these layouts and sizes, in the order of files and devices.
pub(super) fn plan(files: &[(&Layout, u64)], grouping: CallGrouping) -> Vec<PlannedJob> {
    let mut jobs = Vec::new();
    let mut by_device: BTreeMap<DeviceId, Vec<CallPart>> = BTreeMap::new();
    for (file, (layout, size)) in files.iter().enumerate() {
        let width = if layout.is_copied() { 1 } else { layout.width() };
        for (index, object) in layout.objects().iter().enumerate() {
            // An object without bytes may not exist.
            if layout.object_range(index, 0..*size).is_some() {
                let part = CallPart { file, index, unit: layout.stripe_unit(), width, size: *size };
                by_device.entry(object.device).or_default().push(part);
            }
        }
        if grouping == CallGrouping::PerFile {
            flush(&mut by_device, &mut jobs);
        }
    }
    flush(&mut by_device, &mut jobs);
    jobs
}

/// Returns a file that has no object in some job, and the device of that job. A function that
/// changes files pairs objects by their position, so a missing one would pair the wrong files.
pub(super) fn missing_object(jobs: &[PlannedJob], files: Range<usize>) -> Option<(usize, DeviceId)> {
    let is_missing = |job: &PlannedJob, file: usize| job.parts.iter().all(|part| part.file != file);
    let missing =
        |job: &PlannedJob| files.clone().find(|&file| is_missing(job, file)).map(|file| (file, job.device));
    jobs.iter().find_map(missing)
}

fn flush(by_device: &mut BTreeMap<DeviceId, Vec<CallPart>>, jobs: &mut Vec<PlannedJob>) {
    for (device, parts) in std::mem::take(by_device) {
        jobs.extend(parts.chunks(OBJECTS_MAX).map(|parts| PlannedJob { device, parts: parts.to_vec() }));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use sealstone_mds_protocol::ObjectRef;
    use sealstone_osd::ObjectId;

    fn object(device: u32, number: u64) -> ObjectRef {
        ObjectRef { device: DeviceId(device), object: ObjectId::new(0x1_0000, number) }
    }

    fn striped(devices: &[u32], base: u64) -> Layout {
        let objects = devices.iter().zip(base..).map(|(device, number)| object(*device, number)).collect();
        Layout::striped(4096, objects).unwrap()
    }

    #[test]
    fn objects_without_bytes_are_left_out() {
        let layout = striped(&[1, 2, 3], 10);
        let jobs = plan(&[(&layout, 5000), (&layout, 0)], CallGrouping::PerFile);
        let devices: Vec<u32> = jobs.iter().map(|job| job.device.0).collect();
        assert_eq!(devices, [1, 2]);
        assert_eq!(jobs[1].parts[0].geometry().unwrap(), "4096,3,1,5000");
    }

    #[test]
    fn further_copies_are_left_out() {
        let layout = Layout::copies(vec![object(1, 1), object(2, 2)]).unwrap();
        let jobs = plan(&[(&layout, 9)], CallGrouping::PerFile);
        assert_eq!(jobs.len(), 1);
        assert_eq!((jobs[0].device, jobs[0].parts[0].geometry()), (DeviceId(1), None));
        assert_eq!(jobs[0].parts[0].width, 1);
    }

    #[test]
    fn device_jobs_are_bounded_by_objects() {
        let single = Layout::single(object(1, 1));
        let files = vec![(&single, 5u64); OBJECTS_MAX + 1];
        assert_eq!(plan(&files, CallGrouping::PerFile).len(), OBJECTS_MAX + 1);
        let together = plan(&files, CallGrouping::PerDevice);
        let counts: Vec<usize> = together.iter().map(|job| job.parts.len()).collect();
        assert_eq!(counts, [OBJECTS_MAX, 1]);
    }

    #[test]
    fn job_without_file_is_found() {
        let (one, two) = (striped(&[1, 2], 10), Layout::single(object(1, 20)));
        let missing =
            |files: &[(&Layout, u64)]| missing_object(&plan(files, CallGrouping::PerDevice), 0..files.len());
        assert_eq!(missing(&[(&one, 9000), (&one, 9000)]), None);
        assert_eq!(missing(&[(&two, 9), (&two, 0)]), Some((1, DeviceId(1))), "an empty file");
        assert_eq!(missing(&[(&one, 9000), (&two, 9)]), Some((1, DeviceId(2))), "other devices");
        let many = vec![(&two, 9); OBJECTS_MAX + 1];
        assert_eq!(missing(&many), Some((OBJECTS_MAX, DeviceId(1))), "more objects than a job has");
    }

    proptest! {
        #[test]
        fn plan_has_each_object_with_bytes_once(
            shapes in proptest::collection::vec((proptest::collection::vec(0u32..5, 1..9), 0u64..40_000), 0..12),
            together: bool,
        ) {
            let layouts: Vec<(Layout, u64)> =
                shapes.iter().map(|(devices, size)| (striped(devices, 100), *size)).collect();
            let files: Vec<(&Layout, u64)> = layouts.iter().map(|(layout, size)| (layout, *size)).collect();
            let grouping = if together { CallGrouping::PerDevice } else { CallGrouping::PerFile };
            let jobs = plan(&files, grouping);
            let mut found: Vec<(usize, usize)> = Vec::new();
            for job in &jobs {
                prop_assert!(!job.parts.is_empty() && job.parts.len() <= OBJECTS_MAX);
                for part in &job.parts {
                    prop_assert_eq!(files[part.file].0.objects()[part.index].device, job.device);
                    found.push((part.file, part.index));
                }
            }
            found.sort_unstable();
            let mut expected = Vec::new();
            for (file, (layout, size)) in files.iter().enumerate() {
                for index in 0..layout.width() {
                    if layout.object_length(index, *size) > 0 {
                        expected.push((file, index));
                    }
                }
            }
            prop_assert_eq!(found, expected);
        }
    }
}
