//! Formats the results.

use std::fmt::Write as _;

use crate::RunResults;
use crate::contender::Contender;
use crate::overhead;
use crate::statistics::{ContenderRatio, WorkloadResults};

/// Formats a table, other measurements, and the verdicts.
pub(crate) fn text(findings: &RunResults) -> String {
    let mut text = String::new();
    // Writing to a string cannot fail.
    let _ = write(&mut text, findings);
    text
}

fn write(text: &mut String, findings: &RunResults) -> std::fmt::Result {
    writeln!(text, "{}", findings.machine)?;
    writeln!(
        text,
        "one device, one client, loopback, {} MiB object in the page cache; medians of {} rounds, in brackets their \
         95 % intervals\n",
        findings.settings.object_bytes >> 20,
        findings.settings.runs * findings.settings.turns()
    )?;
    writeln!(text, "{:26}{:^17} {:^48} {:^32} {:^13}", "", "NOSEC", "of NOSEC, %", "of TCP, %", "CPU s/GiB")?;
    writeln!(
        text,
        "{:26}{:>8} {:>8} {:>16}{:>16}{:>16} {:>16}{:>16} {:>6} {:>6}",
        "", "MiB/s", "1/s", "CAPKEY", "CMDRSP", "ALLDATA", "NOSEC", "ALLDATA", "device", "client"
    )?;
    for figure in &findings.figures {
        row(text, figure)?;
    }
    let memory = &findings.memory;
    let mib = |kib: u64| kib as f64 / 1024.0;
    writeln!(
        text,
        "\nCPU s/GiB is for NOSEC. Device memory: {:.1} MiB idle, {:.1} MiB at most while read, {:.1} MiB at most.",
        mib(memory.osd_idle_kib),
        mib(memory.osd_peak_after_reads_kib),
        mib(memory.osd_peak_kib)
    )?;
    writeln!(text, "Metadata server: {:.1} MiB idle.\n", mib(memory.mds_idle_kib))?;
    for verdict in &findings.verdicts {
        writeln!(text, "{}", verdict.line(62))?;
    }
    Ok(())
}

/// Formats the table of a run about TLS.
pub(crate) fn tls(findings: &RunResults) -> String {
    let mut text = String::new();
    // Writing to a string cannot fail.
    let _ = write_tls(&mut text, findings);
    text
}

fn write_tls(text: &mut String, findings: &RunResults) -> std::fmt::Result {
    writeln!(
        text,
        "Each method inside TLS 1.3: throughput, % of the same method in plain text in the same round with 95 % \
         intervals, and CPU s/GiB of both\n"
    )?;
    writeln!(
        text,
        "{:26}{:10}{:>12}{:>16}{:>20}{:>20}",
        "", "", "plain MiB/s", "TLS of plain", "device plain / TLS", "client plain / TLS"
    )?;
    for figure in &findings.figures {
        for sealed in Contender::TLS {
            let Some(method) = sealed.in_plain_text() else { continue };
            let (Some(plain), Some(inside)) = (figure.of(method), figure.of(sealed)) else { continue };
            writeln!(
                text,
                "{:26}{:10}{:>12.0}{:>16}{:>11.3} / {:>6.3}{:>11.3} / {:>6.3}",
                figure.name,
                method.name(),
                plain.mib_per_s,
                percent(inside.to_plain.as_ref()),
                plain.device_cpu_s_per_gib,
                inside.device_cpu_s_per_gib,
                plain.client_cpu_s_per_gib,
                inside.client_cpu_s_per_gib,
            )?;
        }
    }
    Ok(())
}

/// Formats the table of a run about algorithms.
pub(crate) fn algorithms(findings: &RunResults) -> String {
    let mut text = String::new();
    // Writing to a string cannot fail.
    let _ = write_algorithms(&mut text, findings);
    text
}

fn write_algorithms(text: &mut String, findings: &RunResults) -> std::fmt::Result {
    writeln!(
        text,
        "Throughput of ALLDATA by algorithm, % of NOSEC in the same round with 95 % intervals, and CPU time of the \
         device, % of NOSEC's\n"
    )?;
    let all = || Contender::ALGORITHMS.into_iter().filter(|&contender| contender != Contender::NoSec);
    write!(text, "{:28}{:>8}{:>8}", "", "MiB/s", "s/GiB")?;
    for contender in all() {
        write!(text, "{:>24}", contender.name())?;
    }
    writeln!(text)?;
    for figure in &findings.figures {
        let Some(nosec) = figure.of(Contender::NoSec) else { continue };
        write!(text, "{:28}{:>8.0}{:>8.2}", figure.name, nosec.mib_per_s, nosec.device_cpu_s_per_gib)?;
        for contender in all() {
            let cell = figure.of(contender).map_or("-".to_owned(), |result| {
                let cpu = 100.0 * result.device_cpu_s_per_gib / nosec.device_cpu_s_per_gib;
                format!("{} {cpu:.0}", percent(Some(&result.to_nosec)))
            });
            write!(text, "{cell:>24}")?;
        }
        writeln!(text)?;
    }
    writeln!(text)?;
    for line in overhead::crossing_lines(&findings.figures) {
        writeln!(text, "{line}")?;
    }
    writeln!(text)?;
    for verdict in &findings.verdicts {
        writeln!(text, "{}", verdict.line(62))?;
    }
    Ok(())
}

fn row(text: &mut String, figure: &WorkloadResults) -> std::fmt::Result {
    let Some(nosec) = figure.of(Contender::NoSec) else { return Ok(()) };
    let to_nosec = |contender| percent(figure.of(contender).map(|result| &result.to_nosec));
    let to_tcp = |contender| percent(figure.of(contender).map(|result| &result.to_tcp));
    writeln!(
        text,
        "{:26}{:>8.0} {:>8.0} {:>16}{:>16}{:>16} {:>16}{:>16} {:>6.2} {:>6.2}",
        figure.name,
        nosec.mib_per_s,
        nosec.operations_per_s,
        to_nosec(Contender::CapKey),
        to_nosec(Contender::CmdRsp),
        to_nosec(Contender::AllData),
        to_tcp(Contender::NoSec),
        to_tcp(Contender::AllData),
        nosec.device_cpu_s_per_gib,
        nosec.client_cpu_s_per_gib
    )
}

/// Formats as `98.2 (97-99)`: median and interval in percent.
fn percent(ratio: Option<&ContenderRatio>) -> String {
    match ratio {
        Some(ContenderRatio { rounds: 1.., median, interval: [low, high], .. }) => {
            format!("{:.1} ({:.0}-{:.0})", 100.0 * median, 100.0 * low, 100.0 * high)
        }
        _ => "-".to_owned(),
    }
}
