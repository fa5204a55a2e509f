//! `sealstone audit`: which credentials were issued for a file, and with the devices' audit logs,
//! how they were used. The work is in `sealstone-administration`.

use sealstone_failure::Outcome;

use crate::cli::GlobalArgs;
use crate::cli::grants::AuditArgs;
use crate::command::session::client;
use crate::output::Output;

/// `sealstone audit`.
pub(crate) async fn run(global: &GlobalArgs, output: Output, arguments: &AuditArgs) -> Outcome {
    let AuditArgs { object, since, until, user, device_log } = arguments;
    let object = global.stored(object)?;
    let (client, _) = client(global)?;
    let time = (since.unwrap_or(0), until.unwrap_or(u64::MAX));
    let report = sealstone_administration::audit(&client, &object, user.as_deref(), time, device_log).await?;
    report.remarks().iter().for_each(|remark| output.remark(remark));
    output.result(&report.json(), || report.text())
}
