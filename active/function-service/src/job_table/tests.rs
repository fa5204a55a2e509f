//! Tests of the job table: random histories respect all limits.

use proptest::prelude::*;

use super::*;

const LIMITS: JobLimits =
    JobLimits { per_user: 4, running: 2, queued: 5, kept: 6, kept_ms: 1000, kept_bytes: 1 << 20 };

fn owner(user: u8) -> JobOwner {
    JobOwner { user: JobUser([user; USER_LEN]), function: ObjectId::new(0x10000, 0x10001) }
}

fn id(number: u8) -> JobId {
    JobId([number; 16])
}

fn success() -> JobEnd {
    JobEnd::without_result(ExitReason::Success)
}

#[test]
fn job_runs_and_reports_result_to_owner() {
    let mut table = JobTable::new(LIMITS);
    table.admit(id(1), owner(1), 5).unwrap();
    assert_eq!(table.get(id(1), owner(1)).unwrap().state(), JobState::Queued);
    assert_eq!(table.start_next(6), Some(id(1)));
    table.log(id(1), b"hello");
    let usage = JobUsage { bytes_read: 7, ..JobUsage::default() };
    table.report(id(1), (1, 2), usage);
    assert_eq!(table.get(id(1), owner(1)).unwrap().progress(), (1, 2));
    let result = JobResult { length: 2, bytes: b"ok".to_vec(), ..JobResult::default() };
    table.finish(id(1), JobEnd { usage, result: result.clone(), ..success() }, 9);
    let job = table.get(id(1), owner(1)).unwrap();
    assert_eq!((job.state(), job.changed_ms, &job.end().result), (JobState::Done, 9, &result));
    assert_eq!(job.log().read(0, 100).1, b"hello\n");
    table.finish(id(1), JobEnd::without_result(ExitReason::Trap), 10);
    assert_eq!(table.get(id(1), owner(1)).unwrap().state(), JobState::Done, "a job ends once");
}

#[test]
fn other_owners_see_no_job() {
    let mut table = JobTable::new(LIMITS);
    table.admit(id(1), owner(1), 0).unwrap();
    let other_function = JobOwner { function: ObjectId::new(0x10000, 0x10002), ..owner(1) };
    for other in [owner(2), other_function] {
        assert!(table.get(id(1), other).is_none());
        assert!(table.cancel(id(1), other, 0).is_none());
    }
    assert!(table.get(id(2), owner(1)).is_none());
    assert_eq!(table.state_of(id(1)), Some(JobState::Queued));
}

#[test]
fn fifth_job_of_user_is_refused() {
    let mut table = JobTable::new(LIMITS);
    for number in 1..=4 {
        table.admit(id(number), owner(1), 0).unwrap();
    }
    assert_eq!(table.admit(id(5), owner(1), 0), Err(AdmitError::UserFull(4)));
    table.admit(id(6), owner(2), 0).unwrap();
    table.start_next(0);
    table.finish(id(1), success(), 1);
    table.admit(id(5), owner(1), 1).unwrap();
    assert_eq!(table.counts().refused, 1);
}

#[test]
fn full_device_refuses_one_more_job() {
    let mut table = JobTable::new(LIMITS);
    for number in 1..=7 {
        table.admit(id(number), owner(number), 0).unwrap();
    }
    assert_eq!(
        (table.start_next(0), table.start_next(0), table.start_next(0)),
        (Some(id(1)), Some(id(2)), None)
    );
    assert_eq!(table.admit(id(8), owner(8), 0), Err(AdmitError::DeviceFull(5)));
    table.finish(id(2), success(), 0);
    assert_eq!(table.start_next(0), Some(id(3)), "the first one in the queue");
    table.admit(id(8), owner(8), 0).unwrap();
}

#[test]
fn zero_and_used_ids_are_refused() {
    let mut table = JobTable::new(LIMITS);
    assert_eq!(table.admit(JobId::NONE, owner(1), 0), Err(AdmitError::IdInUse));
    table.admit(id(1), owner(1), 0).unwrap();
    assert_eq!(table.admit(id(1), owner(1), 0), Err(AdmitError::IdInUse));
}

#[test]
fn cancel_ends_queued_and_stops_running() {
    let mut table = JobTable::new(LIMITS);
    table.admit(id(1), owner(1), 0).unwrap();
    table.admit(id(2), owner(1), 0).unwrap();
    table.start_next(0);
    assert_eq!(table.cancel(id(1), owner(1), 1), Some(CancelEffect::MustStop));
    assert_eq!(table.cancel(id(2), owner(1), 1), Some(CancelEffect::Ended));
    assert_eq!(table.get(id(2), owner(1)).unwrap().state(), JobState::Cancelled);
    table.finish(id(1), JobEnd::without_result(ExitReason::Cancelled), 2);
    assert_eq!(table.cancel(id(1), owner(1), 3), Some(CancelEffect::NoEffect));
    assert_eq!(table.start_next(3), None, "a cancelled job leaves the queue");
}

#[test]
fn ended_jobs_expire_by_time_and_number() {
    let mut table = JobTable::new(LIMITS);
    for number in 1..=8 {
        table.admit(id(number), owner(1), 0).unwrap();
        table.start_next(0);
        table.finish(id(number), success(), u64::from(number));
    }
    assert_eq!(
        (table.counts().kept, table.state_of(id(2)), table.state_of(id(3))),
        (6, None, Some(JobState::Done))
    );
    table.expire(1003);
    assert_eq!((table.state_of(id(3)), table.state_of(id(4))), (None, Some(JobState::Done)));
    table.expire(5000);
    assert_eq!(table.counts().kept, 0);
}

#[test]
fn large_results_displace_oldest_jobs() {
    let mut table = JobTable::new(JobLimits { kept_bytes: 200 << 10, ..LIMITS });
    for number in 1..=4 {
        table.admit(id(number), owner(1), 0).unwrap();
        table.start_next(0);
        let result = JobResult { bytes: vec![0; 64 << 10], ..JobResult::default() };
        table.finish(id(number), JobEnd { result, ..success() }, 0);
    }
    assert_eq!((table.counts().kept, table.state_of(id(1))), (3, None));
}

#[test]
fn lost_jobs_are_reported_to_owner() {
    let mut table = JobTable::new(LIMITS);
    table.add_lost(id(1), owner(1), 0);
    table.add_lost(JobId::NONE, owner(1), 0);
    let job = table.get(id(1), owner(1)).unwrap();
    assert_eq!((job.state(), job.end().exit), (JobState::Lost, ExitReason::Lost));
    assert_eq!(table.counts().kept, 1);
}

#[test]
fn every_exit_reason_has_final_state() {
    for exit in ExitReason::ALL {
        assert!(final_state(*exit).is_final());
    }
}

#[derive(Clone, Debug)]
enum TableStep {
    Admit(u8, u8),
    Start,
    Finish(u8),
    Cancel(u8, u8),
    Lost(u8, u8),
    Wait(u64),
}

fn any_step() -> impl Strategy<Value = TableStep> {
    prop_oneof![
        4 => (1_u8..40, 0_u8..4).prop_map(|(job, user)| TableStep::Admit(job, user)),
        3 => Just(TableStep::Start),
        3 => (1_u8..40).prop_map(TableStep::Finish),
        1 => (1_u8..40, 0_u8..4).prop_map(|(job, user)| TableStep::Cancel(job, user)),
        1 => (1_u8..40, 0_u8..4).prop_map(|(job, user)| TableStep::Lost(job, user)),
        1 => (0_u64..600).prop_map(TableStep::Wait),
    ]
}

proptest! {
    /// The counters always agree with the jobs, and no limit is exceeded.
    #[test]
    fn any_history_respects_all_limits(steps in proptest::collection::vec(any_step(), 0..200)) {
        let (mut table, mut now) = (JobTable::new(LIMITS), 0);
        for step in steps {
            let before = table.counts().ended.values().sum::<u64>();
            match step {
                TableStep::Admit(job, user) => { let _ = table.admit(id(job), owner(user), now); }
                TableStep::Start => { table.start_next(now); }
                TableStep::Finish(job) => table.finish(id(job), success(), now),
                TableStep::Cancel(job, user) => { table.cancel(id(job), owner(user), now); }
                TableStep::Lost(job, user) => table.add_lost(id(job), owner(user), now),
                TableStep::Wait(ms) => { now += ms; table.expire(now); }
            }
            let with = |state| table.jobs.values().filter(|job| job.state == state).count();
            let counts = table.counts();
            prop_assert_eq!(counts.running, with(JobState::Running));
            prop_assert_eq!(counts.queued, with(JobState::Queued));
            prop_assert_eq!(counts.kept, table.jobs.len() - counts.running - counts.queued);
            prop_assert!(counts.running <= LIMITS.running && counts.kept <= LIMITS.kept);
            prop_assert!(counts.running + counts.queued <= LIMITS.running + LIMITS.queued);
            prop_assert!(counts.ended.values().sum::<u64>() >= before);
            for (user, active) in &table.active {
                let of_user = table.jobs.values().filter(|job| job.owner.user == *user && !job.state.is_final());
                prop_assert_eq!(*active, of_user.count());
                prop_assert!((1..=LIMITS.per_user).contains(active));
            }
            let bytes: usize = table.ended.iter().map(|job| table.jobs[job].kept_bytes()).sum();
            prop_assert_eq!(bytes, table.ended_bytes);
        }
    }
}
