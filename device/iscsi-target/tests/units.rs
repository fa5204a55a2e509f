//! Several logical units behind one target, the unit attentions that initiators get, and target
//! resets.

use std::{
    collections::HashMap,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
};

use crate::support::{Client, NAME, Running, SLEEP};
use sealstone_iscsi::{
    Buffer, Cdb, Gather, TaskAttribute,
    initiator::{
        CommandResponse, InitiatorClosed, InitiatorEvent, ManagementFunction, ManagementResult,
        SubmittedCommand,
    },
};
use sealstone_iscsi_target::{CommandPacing, Counter, TargetConfig};
use sealstone_scsi::{
    AdditionalSense, Attentions, Sense,
    additional::{
        BUS_DEVICE_RESET_OCCURRED, COMMANDS_CLEARED_BY_ANOTHER_INITIATOR, NEXUS_LOSS_OCCURRED,
        POWER_ON_OR_RESET, REPORTED_LUNS_CHANGED,
    },
    lu::{Cost, InitiatorPort, LogicalUnit, NexusId, ScsiCommand, ScsiReply},
    primary::{self, DeviceServer},
    spc::{
        Identity,
        mode::{self, ModeHeader, ModePage, NewPage},
        supported::CommandRow,
        vpd,
    },
};

/// Opcode: as [`SLEEP`], but as a long command.
const LONG: u8 = 0xC5;

/// A minimal unit, with a command that ends when the test allows it.
#[derive(Default)]
struct Plain {
    nexuses: Mutex<HashMap<NexusId, Attentions>>,
    resets: AtomicUsize,
    release: AtomicBool,
}

impl LogicalUnit for Plain {
    fn cost(&self, _: NexusId, cdb: &[u8]) -> Cost {
        match cdb[0] {
            SLEEP => Cost::Blocking,
            LONG => Cost::Heavy(1 << 20),
            _ => Cost::Inline,
        }
    }
    fn execute(&self, command: ScsiCommand<'_>) -> ScsiReply {
        if matches!(command.cdb[0], SLEEP | LONG) {
            while !self.release.load(Ordering::SeqCst) {
                std::thread::sleep(std::time::Duration::from_millis(1));
            }
            return ScsiReply::status(sealstone_scsi::Status::Good);
        }
        primary::answer(self, &command)
    }
    fn nexus_established(&self, nexus: NexusId, port: &InitiatorPort<'_>) {
        self.nexuses.lock().unwrap().insert(nexus, Attentions::begin(port.attention()));
    }
    fn nexus_lost(&self, nexus: NexusId) {
        self.nexuses.lock().unwrap().remove(&nexus);
    }
    fn reset(&self) {
        self.resets.fetch_add(1, Ordering::SeqCst);
        self.nexuses
            .lock()
            .unwrap()
            .values_mut()
            .for_each(|waiting| waiting.raise(BUS_DEVICE_RESET_OCCURRED));
    }
    fn attention(&self, nexus: NexusId, code: AdditionalSense) {
        if let Some(waiting) = self.nexuses.lock().unwrap().get_mut(&nexus) {
            waiting.raise(code);
        }
    }
    fn luns_reported(&self, nexus: NexusId) {
        if let Some(waiting) = self.nexuses.lock().unwrap().get_mut(&nexus) {
            waiting.luns_reported();
        }
    }
}

impl DeviceServer for Plain {
    fn identity(&self) -> Identity<'_> {
        Identity {
            device_type: 0x1F,
            vendor: "SEALSTON",
            product: "PLAIN",
            revision: "1",
            versions: &[],
            removable: false,
        }
    }
    fn pages(&self) -> &[u8] {
        &[vpd::SUPPORTED]
    }
    fn page(&self, _: NexusId, _: u8) -> Option<Vec<u8>> {
        None
    }
    fn commands(&self) -> &[CommandRow] {
        &[]
    }
    fn ready(&self) -> Result<(), Sense> {
        Ok(())
    }
    fn unit_attention(&self, nexus: NexusId, take: bool) -> Option<AdditionalSense> {
        let mut nexuses = self.nexuses.lock().unwrap();
        let waiting = nexuses.get_mut(&nexus)?;
        if take { waiting.take() } else { waiting.first() }
    }
    fn luns_reported(&self, nexus: NexusId) {
        LogicalUnit::luns_reported(self, nexus);
    }
    fn descriptor_sense(&self) -> bool {
        false
    }
    fn mode_header(&self) -> ModeHeader {
        ModeHeader::default()
    }
    fn mode_pages(&self) -> Vec<ModePage> {
        vec![mode::control_page(false)]
    }
    fn mode_select(&self, _: NexusId, _: &[NewPage], _: bool) -> Result<(), Sense> {
        Ok(())
    }
}

fn submit(client: &mut Client, lun: u8, cdb: &[u8], read: usize) -> sealstone_iscsi::TaskId {
    let mut block = [0; 16];
    block[..cdb.len()].copy_from_slice(cdb);
    let command = SubmittedCommand {
        lun: u64::from(lun) << 48,
        cdb: Cdb::new(&block).unwrap(),
        attribute: TaskAttribute::Simple,
        data_out: Gather::new(),
        data_in: Buffer::from(vec![0; read]),
    };
    client.machine.submit(command).unwrap()
}

fn on(client: &mut Client, lun: u8, cdb: &[u8], read: usize) -> CommandResponse {
    let task = submit(client, lun, cdb, read);
    loop {
        match client.event() {
            InitiatorEvent::Completed { task: done, outcome } if done == task => return outcome.unwrap(),
            InitiatorEvent::Closed(reason) => panic!("{reason}"),
            _ => {}
        }
    }
}

/// Returns the unit attention that TEST UNIT READY reports. `None`: GOOD.
fn hears(client: &mut Client, lun: u8) -> Option<AdditionalSense> {
    let response = on(client, lun, &[0; 6], 0);
    (response.status != 0).then(|| Sense::parse(&response.sense).unwrap().code)
}

fn luns(client: &mut Client) -> Vec<u8> {
    let response = on(client, 0, &[0xA0, 0, 0, 0, 0, 0, 0, 0, 0, 255, 0, 0], 255);
    response.data_in.as_slice()[8..response.data_in_length].chunks(8).map(|lun| lun[1]).collect()
}

async fn blocking<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> T {
    tokio::task::spawn_blocking(work).await.unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn short_commands_overtake_long_in_session() {
    let mut config = TargetConfig::new(NAME);
    config.pace = CommandPacing { short_first: true, slices: false };
    let unit = Arc::new(Plain::default());
    let running = Running::start(config, Arc::clone(&unit) as Arc<dyn LogicalUnit>).await;
    let (address, target) = (running.address, running.target.clone());
    blocking(move || {
        let mut client = Client::login(address, 1);
        assert_eq!(hears(&mut client, 0), Some(POWER_ON_OR_RESET));
        let long = submit(&mut client, 0, &[LONG], 0);
        for _ in 0..20 {
            assert_eq!(hears(&mut client, 0), None);
        }
        assert_eq!(target.counters().get(Counter::CommandsHeavy), 1);
        unit.release.store(true, Ordering::SeqCst);
        loop {
            if let InitiatorEvent::Completed { task, outcome } = client.event() {
                assert_eq!((task, outcome.unwrap().status), (long, 0));
                break;
            }
        }
    })
    .await;
    running.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn attach_and_detach_raise_unit_attention() {
    let running = Running::start(TargetConfig::new(NAME), Arc::new(Plain::default())).await;
    let (address, target) = (running.address, running.target.clone());
    blocking(move || {
        let mut client = Client::login(address, 1);
        assert_eq!(hears(&mut client, 0), Some(POWER_ON_OR_RESET));
        assert_eq!((hears(&mut client, 0), luns(&mut client)), (None, vec![0]));
        target.attach(5, Arc::new(Plain::default())).unwrap();
        assert!(target.attach(5, Arc::new(Plain::default())).is_err(), "taken");
        assert!(target.attach(0x4000, Arc::new(Plain::default())).is_err(), "invalid number");
        assert_eq!(hears(&mut client, 0), Some(REPORTED_LUNS_CHANGED));
        assert_eq!(luns(&mut client), [0, 5]);
        assert_eq!(hears(&mut client, 5), Some(POWER_ON_OR_RESET));
        assert_eq!(hears(&mut client, 5), None, "the list was read meanwhile");
        assert!(target.detach(5) && !target.detach(5));
        assert_eq!(luns(&mut client), [0]);
        assert_eq!(hears(&mut client, 0), None, "this is not reported again");
        assert_eq!(on(&mut client, 5, &[0; 6], 0).sense[12], 0x25);
        assert_eq!(on(&mut client, 5, &[0x12, 0, 0, 0, 36, 0], 36).data_in.as_slice()[0], 0x7F);
        client.machine.logout();
        assert_eq!(client.ending(), InitiatorClosed::LoggedOut);
        let mut again = Client::login(address, 1);
        assert_eq!(hears(&mut again, 0), Some(NEXUS_LOSS_OCCURRED));
        assert_eq!(hears(&mut Client::login(address, 2), 0), Some(POWER_ON_OR_RESET));
    })
    .await;
    running.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn cleared_commands_raise_unit_attention() {
    let unit = Arc::new(Plain::default());
    let running = Running::start(TargetConfig::new(NAME), unit.clone()).await;
    let address = running.address;
    blocking(move || {
        let (mut first, mut second) = (Client::login(address, 1), Client::login(address, 2));
        for client in [&mut first, &mut second] {
            assert_eq!(hears(client, 0), Some(POWER_ON_OR_RESET));
        }
        submit(&mut second, 0, &[SLEEP], 0);
        assert_eq!(hears(&mut second, 0), None);
        assert_eq!(first.manage(ManagementFunction::AbortTaskSet(3 << 48)), ManagementResult::NoSuchLun);
        assert_eq!(first.manage(ManagementFunction::ClearTaskSet(0)), ManagementResult::Complete);
        // It was reported before the function was answered.
        assert_eq!(hears(&mut second, 0), Some(COMMANDS_CLEARED_BY_ANOTHER_INITIATOR));
        assert_eq!(first.manage(ManagementFunction::ClearTaskSet(0)), ManagementResult::Complete);
        assert_eq!((hears(&mut second, 0), hears(&mut first, 0)), (None, None), "nothing was lost");
        assert_eq!(first.manage(ManagementFunction::LogicalUnitReset(0)), ManagementResult::Complete);
        for client in [&mut first, &mut second] {
            assert_eq!(hears(client, 0), Some(BUS_DEVICE_RESET_OCCURRED));
        }
        assert_eq!(first.manage(ManagementFunction::TargetWarmReset), ManagementResult::NotAuthorized);
        let results: Vec<_> =
            (0..40).map(|_| first.manage(ManagementFunction::LogicalUnitReset(0))).collect();
        assert!(results[..13].iter().all(|result| *result == ManagementResult::Complete), "{results:?}");
        assert!(
            results.iter().any(|result| matches!(result, ManagementResult::Rejected(_))),
            "resets are limited"
        );
        unit.release.store(true, Ordering::SeqCst);
    })
    .await;
    running.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn target_reset_reaches_all_units_and_connections() {
    let mut config = TargetConfig::new(NAME);
    config.protocol.allow_target_reset = true;
    let (one, two) = (Arc::new(Plain::default()), Arc::new(Plain::default()));
    let running = Running::start(config, one.clone()).await;
    running.target.attach(1, two.clone()).unwrap();
    let address = running.address;
    blocking(move || {
        let (mut first, mut second) = (Client::login(address, 1), Client::login(address, 2));
        assert_eq!(hears(&mut second, 1), Some(POWER_ON_OR_RESET));
        assert_eq!(first.manage(ManagementFunction::TargetWarmReset), ManagementResult::Complete);
        assert_eq!(hears(&mut second, 1), Some(BUS_DEVICE_RESET_OCCURRED));
        assert_eq!(first.manage(ManagementFunction::TargetColdReset), ManagementResult::Complete);
        assert_eq!(
            (first.ending(), second.ending()),
            (InitiatorClosed::EndOfStream, InitiatorClosed::EndOfStream)
        );
        assert_eq!((one.resets.load(Ordering::SeqCst), two.resets.load(Ordering::SeqCst)), (2, 2));
        assert_eq!(hears(&mut Client::login(address, 1), 0), Some(NEXUS_LOSS_OCCURRED));
    })
    .await;
    running.stop().await;
}
