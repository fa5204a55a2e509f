//! `sealstone osd drain`, `osd rebalance`, `osd check`, `scrub` and `check`. The work is in
//! `sealstone-administration`.

use std::path::Path;
use std::time::Duration;

use sealstone_administration::{
    DrainAction, OperationObserver, RebalanceAction, ScrubAction, WaitLimit, function_status,
    function_status_text,
};
use sealstone_client::CheckScope;
use sealstone_failure::Outcome;
use serde_json::json;

use crate::cli::check::CheckArgs;
use crate::cli::drain::DrainArgs;
use crate::cli::rebalance::RebalanceArgs;
use crate::cli::{GlobalArgs, ScrubArgs};
use crate::command::progress::ShownOperation;
use crate::command::session::client;
use crate::output::Output;

/// Returns how long the end of an operation is awaited: without options, until it ends.
fn wait_limit(no_wait: bool, seconds: Option<u64>) -> WaitLimit {
    match (no_wait, seconds) {
        (true, _) => WaitLimit::None,
        (false, Some(seconds)) => WaitLimit::Required(Duration::from_secs(seconds)),
        (false, None) => WaitLimit::Forever,
    }
}

/// `sealstone osd drain`.
pub(crate) async fn drain(global: &GlobalArgs, output: Output, arguments: &DrainArgs) -> Outcome {
    let (client, _) = client(global)?;
    let action = match (arguments.show, arguments.undo) {
        (true, _) => DrainAction::Show,
        (_, true) => DrainAction::Undo,
        _ => {
            let wait = wait_limit(arguments.no_wait, arguments.wait);
            DrainAction::Start { rate: arguments.rate, wait }
        }
    };
    let observer = ShownOperation::new(output);
    let report = sealstone_administration::drain(&client, &arguments.device, action, &observer).await?;
    output.result(&report.json(), || report.text())
}

/// `sealstone osd rebalance`.
pub(crate) async fn rebalance(global: &GlobalArgs, output: Output, arguments: &RebalanceArgs) -> Outcome {
    let (client, _) = client(global)?;
    let action = match (arguments.show, arguments.stop) {
        (true, _) => RebalanceAction::Show,
        (_, true) => RebalanceAction::Stop,
        _ => {
            let wait = wait_limit(arguments.no_wait, arguments.wait);
            RebalanceAction::Start { rate: arguments.rate, wait }
        }
    };
    let observer = ShownOperation::new(output);
    let report = sealstone_administration::rebalance(&client, action, &observer).await?;
    output.result(&report.json(), || report.text())
}

/// `sealstone check`.
pub(crate) async fn check(global: &GlobalArgs, output: Output, arguments: &CheckArgs) -> Outcome {
    let (client, _) = client(global)?;
    let report = if arguments.show {
        let Some(report) = sealstone_administration::last_check(&client).await? else {
            let none = || "no check has run since the metadata server started".to_owned();
            return output.result(&json!({ "check": null }), none);
        };
        report
    } else {
        let scope = if arguments.no_objects { CheckScope::Names } else { CheckScope::Objects };
        let shown = ShownOperation::new(output);
        let observer: Option<&dyn OperationObserver> = if arguments.no_wait { None } else { Some(&shown) };
        sealstone_administration::check(&client, scope, arguments.repair, observer).await?
    };
    output.result(&json!({ "check": report.json() }), || report.text())?;
    report.outcome()
}

/// `sealstone osd check`.
pub(crate) fn check_device(output: Output, data: &Path, repair: bool) -> Outcome {
    let report = sealstone_administration::check_device(data, repair, &ShownOperation::new(output))?;
    output.result(&report.json(), || report.text())?;
    report.outcome()
}

/// `sealstone osd status`.
pub(crate) fn device_status(output: Output, data: &Path) -> Outcome {
    let status = function_status(data)?;
    output.result(&json!({ "functions": status }), || function_status_text(&status))
}

/// `sealstone scrub`.
pub(crate) fn scrub(output: Output, arguments: &ScrubArgs) -> Outcome {
    let action = match (arguments.show, arguments.stop) {
        (true, _) => ScrubAction::Show,
        (_, true) => ScrubAction::Stop,
        _ => ScrubAction::Begin,
    };
    let shown = ShownOperation::new(output);
    let observer: Option<&dyn OperationObserver> = if arguments.no_wait { None } else { Some(&shown) };
    let device = arguments.device.as_deref();
    let result = sealstone_administration::scrub(&arguments.data, device, action, observer)?;
    output.result(&result.json(), || result.text())?;
    result.outcome()
}
