//! Cost of one record in a metadata store: read, written, deleted; embedded, in PostgreSQL, in
//! LDAP. Also the cost of an LDAP entry as in the OBS paper's Figure 6, beside the paper's times.
//!
//! Does: starts separate PostgreSQL and slapd servers with default durability.
//! Does not: use a metadata server.
//! Contract: one caller, one record per commit; missing servers are skipped with a message. The
//! LDAP store reads records from memory and writes record entries a moment after the commit, so its
//! times are not those of the entries.

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;

use sealstone_ldap::{
    Attribute, Filter, LdapResult, Message, MessageBody, Search, SearchScope, Values, add_request,
    bind_request, delete_request, message_length, replace_request, search_request,
};
use sealstone_mds::store::MetaStore;
use sealstone_meta_store::{EmbeddedMeta, LdapMeta, LdapSettings, PostgresMeta, PostgresSettings};
use serde::Serialize;
use zeroize::Zeroizing;

use crate::Outcome;
use crate::files::{Postgres, Slapd};
use crate::latency::CommandLatency;
use crate::machine::{CoreWaker, MachineInfo};
use crate::settings::Stores;

/// Bytes of a record's value, about those of a file with one object.
const VALUE_BYTES: usize = 256;
/// Records and entries that exist before.
const THERE: usize = 1000;
/// Measurements of the OBS paper for an entry of its LDAP server, in microseconds.
const PAPER: [(&str, f64); 3] = [("read", 640.0), ("write", 815.0), ("delete", 2750.0)];

#[derive(Serialize)]
struct StoreResults {
    machine: MachineInfo,
    samples: usize,
    rows: Vec<CommandLatency>,
    left_out: Vec<String>,
}

/// Measures and prints.
pub(crate) fn run(arguments: &Stores) -> Outcome {
    let samples = arguments.samples;
    if !(10..=1_000_000).contains(&samples) {
        return Err("--samples is not between 10 and 1000000".into());
    }
    let mut machine = MachineInfo::look();
    let scratch = arguments.stage.scratch()?;
    let folder = scratch.path();
    let awake = if arguments.stage.let_sleep { None } else { CoreWaker::new() };
    machine.kept_awake = awake.is_some();
    let (mut rows, mut left_out) = (Vec::new(), Vec::new());
    let mut add = |name: &str, part: Outcome<Vec<CommandLatency>>| match part {
        Ok(more) => rows.extend(more),
        Err(error) => left_out.push(format!("{name}: {error}")),
    };
    add("embedded", embedded(folder, samples));
    add("PostgreSQL", postgres(folder, samples));
    add("LDAP", ldap(folder, samples));
    drop(awake);
    machine.look_again();
    println!("{machine}\n");
    println!("{:40} {:>10} {:>10} {:>10}  OBS, us", "", "median us", "p99 us", "least us");
    for row in &rows {
        let paper = PAPER.iter().find(|(kind, _)| row.name.strip_prefix("LDAP entry, ") == Some(kind));
        let paper = paper.map_or(String::new(), |(_, us)| format!("{us:.0}"));
        let CommandLatency { name, median_us, p99_us, least_us, .. } = row;
        println!("{name:40} {median_us:>10.1} {p99_us:>10.1} {least_us:>10.1}  {paper}");
    }
    for missing in &left_out {
        println!("left out: {missing}");
    }
    arguments.common.save(&StoreResults { machine, samples, rows, left_out })
}

fn embedded(folder: &Path, samples: usize) -> Outcome<Vec<CommandLatency>> {
    measure("embedded store", &EmbeddedMeta::open(&folder.join("embedded"))?, samples)
}

fn postgres(folder: &Path, samples: usize) -> Outcome<Vec<CommandLatency>> {
    let database = Postgres::start(&folder.join("postgres"))?;
    measure("PostgreSQL store", &PostgresMeta::open(&PostgresSettings::new(&database.url()))?, samples)
}

fn ldap(folder: &Path, samples: usize) -> Outcome<Vec<CommandLatency>> {
    let slapd = Slapd::start(&folder.join("slapd"))?;
    let password = Zeroizing::new(std::fs::read(slapd.password_file())?);
    let settings = LdapSettings { password: Some(password), ..LdapSettings::new(slapd.url()) };
    let mut rows = measure("LDAP store", &LdapMeta::open(&settings)?, samples)?;
    rows.extend(entries(&slapd, samples)?);
    Ok(rows)
}

fn key(number: usize) -> Vec<u8> {
    format!("bench{number:08}").into_bytes()
}

/// Measures one store through the trait that the metadata server uses.
fn measure(name: &str, store: &dyn MetaStore, samples: usize) -> Outcome<Vec<CommandLatency>> {
    let put = |number: usize, byte: u8| -> Outcome {
        let mut transaction = store.begin()?;
        transaction.put(&key(number), &[byte; VALUE_BYTES])?;
        Ok(transaction.commit()?)
    };
    for number in 0..THERE {
        put(number, 1)?;
    }
    let row = |kind: &str, work: &mut dyn FnMut(usize) -> Outcome| {
        CommandLatency::measure(&format!("{name}, {kind}"), "", samples, work)
    };
    let mut rows = Vec::new();
    rows.push(row("read", &mut |number| {
        let found = store.snapshot()?.get(&key(number % THERE))?;
        if found.is_some() { Ok(()) } else { Err("a record that was written is not there".into()) }
    })?);
    rows.push(row("write", &mut |number| put(THERE + number, 2))?);
    rows.push(row("change", &mut |number| put(number % THERE, number as u8))?);
    rows.push(row("delete", &mut |number| {
        let mut transaction = store.begin()?;
        transaction.delete(&key(THERE + number))?;
        Ok(transaction.commit()?)
    })?);
    Ok(rows)
}

/// A connection to the LDAP server, one request at a time.
struct LdapClient {
    stream: UnixStream,
    id: u32,
    bytes: Vec<u8>,
}

impl LdapClient {
    /// Sends a request, reads its complete response, and returns the number of entries.
    fn ask(&mut self, request: impl FnOnce(u32) -> Zeroizing<Vec<u8>>) -> Outcome<usize> {
        self.id += 1;
        self.stream.write_all(&request(self.id))?;
        let mut entries = 0;
        loop {
            while let Some(length) = message_length(&self.bytes)?.filter(|length| *length <= self.bytes.len())
            {
                let message = Message::parse(self.bytes.get(..length).unwrap_or_default())?;
                self.bytes.drain(..length);
                match message.body {
                    MessageBody::SearchEntry(_) => entries += 1,
                    MessageBody::Bound(outcome)
                    | MessageBody::Done(outcome)
                    | MessageBody::Changed(outcome) => {
                        return match outcome.code {
                            LdapResult::SUCCESS => Ok(entries),
                            _ => Err(format!("the LDAP server refused: {outcome}").into()),
                        };
                    }
                    _ => {}
                }
            }
            let mut more = [0; 4096];
            let read = self.stream.read(&mut more)?;
            if read == 0 {
                return Err("the LDAP server hung up".into());
            }
            self.bytes.extend_from_slice(more.get(..read).unwrap_or_default());
        }
    }
}

/// Measures single entries, each as the OBS paper stores a file: its name, its attributes, the
/// location of its object.
fn entries(slapd: &Slapd, samples: usize) -> Outcome<Vec<CommandLatency>> {
    let stream = UnixStream::connect(slapd.socket())?;
    let mut directory = LdapClient { stream, id: 0, bytes: Vec::new() };
    let password = Zeroizing::new(std::fs::read_to_string(slapd.password_file())?);
    directory.ask(|id| bind_request(id, Slapd::WHO, &password))?;
    let name = |number: usize| format!("file{number:08}");
    let dn = |number: usize| format!("documentIdentifier={},{}", name(number), Slapd::BASE);
    let add = |directory: &mut LdapClient, number: usize| -> Outcome {
        let (called, title) = (name(number), format!("a file of number {number}"));
        let (called, title) = ([called.as_bytes()], [title.as_bytes()]);
        let attributes: [Values<'_>; 5] = [
            ("objectClass", &[b"document"]),
            ("documentIdentifier", &called),
            ("documentTitle", &title),
            ("documentLocation", &[b"device 1, partition 65536, object 65537"]),
            ("description", &[b"0644 1000 1000 1163500000 1163500000 1163500000 4096"]),
        ];
        directory.ask(|id| add_request(id, &dn(number), &attributes)).map(drop)
    };
    for number in 0..THERE {
        add(&mut directory, number)?;
    }
    let filter = Filter::Present(Attribute::new("objectClass")?);
    let wanted = ["documentTitle", "documentLocation", "description"];
    let wanted = wanted.map(Attribute::new).into_iter().collect::<Result<Vec<_>, _>>()?;
    let wanted: Vec<&Attribute> = wanted.iter().collect();
    let row = |kind: &str, work: &mut dyn FnMut(usize) -> Outcome| {
        CommandLatency::measure(&format!("LDAP entry, {kind}"), "", samples, work)
    };
    let mut rows = Vec::new();
    rows.push(row("read", &mut |number| {
        let base = dn(number % THERE);
        let search = Search {
            base: &base,
            scope: SearchScope::Base,
            filter: &filter,
            attributes: &wanted,
            entries_max: 1,
            time_s_max: 0,
        };
        match directory.ask(|id| search_request(id, &search))? {
            1 => Ok(()),
            other => Err(format!("{other} entries of one name").into()),
        }
    })?);
    rows.push(row("write", &mut |number| add(&mut directory, THERE + number))?);
    rows.push(row("change", &mut |number| {
        let size = format!("0644 1000 1000 1163500000 1163500000 1163500000 {number}");
        let (at, size) = (dn(number % THERE), [size.as_bytes()]);
        directory.ask(|id| replace_request(id, &at, &[("description", &size)])).map(drop)
    })?);
    rows.push(row("delete", &mut |number| {
        let at = dn(THERE + number);
        directory.ask(|id| delete_request(id, &at)).map(drop)
    })?);
    Ok(rows)
}
