//! `sealstone scrub`: have running devices read everything, follow them, and show what is damaged.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::cli::Scrub;
use crate::command::check::{summary, verdict};
use crate::daemon::control::{self, Request};
use crate::daemon::scrub::{Asked, Told, Unread};
use crate::failure::{Failure, Kind, Outcome};
use crate::output::{Output, utc};
use crate::text::ShownPath as _;

/// How often a scrub is looked after.
const LOOK_EVERY: Duration = Duration::from_millis(200);
/// The file that makes a folder a device's.
const DEVICE_FILE: &str = "device.toml";

/// Runs the command.
pub(crate) fn command(output: Output, arguments: &Scrub) -> Outcome {
    let folders = folders(&arguments.data, arguments.device.as_deref())?;
    let asked = match (arguments.show, arguments.stop) {
        (true, _) => Asked::Show,
        (_, true) => Asked::Stop,
        _ => Asked::Begin,
    };
    let mut all = Vec::new();
    // All begin before the first is waited for.
    for folder in &folders {
        all.push(ask(folder, asked)?);
    }
    if asked == Asked::Begin && !arguments.no_wait {
        for (told, folder) in all.iter_mut().zip(&folders) {
            follow(output, folder, told)?;
        }
    }
    output.result(&all, || all.iter().map(text).collect::<Vec<_>>().join("\n"))?;
    if asked == Asked::Begin && !arguments.no_wait {
        let unfinished = all.iter().find(|told| told.ended_ms < told.began_ms);
        if let Some(told) = unfinished {
            return Err(Failure::operation("the scrub was stopped before its end").at(&told.device));
        }
    }
    all.iter().try_for_each(|told| verdict(&told.device, told.damaged, None))
}

/// The folders of the devices that are meant.
fn folders(data: &Path, device: Option<&str>) -> Outcome<Vec<PathBuf>> {
    let at = |error: std::io::Error| Failure::from(error).at(data.shown());
    if data.join(DEVICE_FILE).exists() && device.is_none() {
        return Ok(vec![data.to_owned()]);
    }
    let mut found = Vec::new();
    for entry in fs::read_dir(data).map_err(at)? {
        let path = entry.map_err(at)?.path();
        let meant = device.is_none_or(|device| path.file_name().is_some_and(|name| name == device));
        if meant && path.join(DEVICE_FILE).exists() {
            found.push(path);
        }
    }
    found.sort();
    match (found.is_empty(), device) {
        (false, _) => Ok(found),
        (true, Some(device)) => {
            Err(Failure::new(Kind::NotFound, format!("no device is called '{device}'")).at(data.shown()))
        }
        (true, None) => Err(Failure::new(Kind::NotFound, "holds no device")
            .at(data.shown())
            .hint("say the folder of a device, or the one of `sealstone up`")),
    }
}

fn ask(folder: &Path, asked: Asked) -> Outcome<Told> {
    let value = control::ask(folder, &Request::Scrub(asked))?.ok_or_else(|| {
        Failure::operation("no device runs here")
            .at(folder.shown())
            .hint(format!("start it, or read it at rest: sealstone osd check --data {}", folder.shown()))
    })?;
    serde_json::from_value(value).map_err(Failure::operation)
}

/// Waits for the end, behind a progress bar.
fn follow(output: Output, folder: &Path, told: &mut Told) -> Outcome {
    let bar = output.progress(Some(told.bytes_total), &told.device);
    while told.running {
        // Blocks that objects share are read for each.
        bar.set_length(told.bytes_total.max(told.bytes));
        bar.set_position(told.bytes);
        std::thread::sleep(LOOK_EVERY);
        *told = ask(folder, Asked::Show)?;
    }
    bar.finish_and_clear();
    Ok(())
}

fn text(told: &Told) -> String {
    let mut lines: Vec<String> =
        told.findings.iter().map(|found| format!("object {}", found.line())).collect();
    if told.more {
        lines.push("and more".into());
    }
    lines.extend(told.unread_objects.iter().map(|one| {
        let Unread { object, at, error } = one;
        format!("object {object}: could not be read from byte {at} on: {error}; the next scrub tries again")
    }));
    let mut summary = summary(&told.device, told.objects, told.bytes, told.damaged);
    if told.unread > 0 {
        summary += &format!(", {} could not be read to the end", told.unread);
    }
    if told.digested > 0 {
        summary += &format!(", {} missing digests made", told.digested);
    }
    lines.push(match (told.running, told.ended_ms, told.began_ms) {
        (true, _, _) => format!(
            "{summary}; under way, {} of {} objects",
            told.objects,
            told.objects_total.max(told.objects)
        ),
        (false, _, 0) => {
            format!("{}: never scrubbed, {} objects known as damaged", told.device, told.damaged)
        }
        (false, ended, began) if ended < began => format!("{summary}; stopped before its end"),
        (false, ended, _) => format!("{summary}; ended {}", utc(ended)),
    });
    lines.join("\n")
}
