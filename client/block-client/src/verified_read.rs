//! Reads of a unit whose blocks have keys: reports about blocks, and older versions.
//!
//! Does: repeats a READ with a block that was not authentic, after the target was informed. With
//! the paper's profile, reads older versions of such blocks, and reports blocks that are authentic.
//! Does not: verify; the session does, and replaces such blocks by zeros.
//! Contract: returned bytes are authentic. With `paper+safe` they are those of the newest write.
//! Truth: docs/standards/block-protection.md, "Reads".

use bytes::Bytes;
use sealstone_initiator::{
    BLOCK_NOT_AUTHENTIC, BlockReport, READ_OLDER_VERSION, REPORT_BLOCKS, ScsiResponse,
};

use crate::BlockError;
use crate::command;
use crate::unit_path::{UnitCommand, UnitPath};

/// Attempts to read a block whose bytes are changed on their way.
const ATTEMPTS_MAX: u32 = 3;
/// Versions before the newest that are tried.
const OLDER_MAX: u8 = 8;
/// Reports in one command.
const REPORTS_MAX: usize = 1024;
/// Waiting reports that are sent after a read.
const REPORTS_DUE: usize = 64;

/// Returns the block of an error about a block that is not authentic.
fn corrupt_block(error: &BlockError) -> Option<u64> {
    let BlockError::Medium { sense } = error else { return None };
    sense.information.filter(|_| sense.code == BLOCK_NOT_AUTHENTIC)
}

impl UnitPath {
    /// Runs a READ of `blocks` blocks from `lba` on.
    pub(crate) async fn read_verified(
        &self,
        command: &UnitCommand,
        mut buffer: Vec<u8>,
        lba: u64,
        blocks: u32,
    ) -> Result<ScsiResponse, BlockError> {
        let mut attempts = 0;
        loop {
            match self.run(command, core::mem::take(&mut buffer)).await {
                Ok(response) => {
                    if self.falls_back() && self.waiting_reports() >= REPORTS_DUE {
                        self.send_reports().await?;
                    }
                    return Ok(response);
                }
                Err(error) => {
                    let corrupt = corrupt_block(&error).ok_or(error)?;
                    tracing::warn!(block = corrupt, "a block that was read is not authentic");
                    self.refresh_unit_keys().await?;
                    self.send_reports().await?;
                    attempts += 1;
                    if attempts < ATTEMPTS_MAX {
                        continue;
                    }
                    if !self.falls_back() {
                        return Err(BlockError::NotAuthentic(corrupt));
                    }
                    return self.read_older(command, lba, blocks).await;
                }
            }
        }
    }

    /// Reads each block in the newest version that is authentic.
    async fn read_older(
        &self,
        command: &UnitCommand,
        lba: u64,
        blocks: u32,
    ) -> Result<ScsiResponse, BlockError> {
        let block = command.data_in_max / blocks.max(1) as usize;
        let mut found: Option<ScsiResponse> = None;
        for lba in lba..lba + u64::from(blocks) {
            let mut back = 0;
            let response = loop {
                let cdb = command::read(lba, 1);
                let cdb = if back == 0 { cdb } else { older(&cdb, back) };
                let one =
                    UnitCommand { name: command.name, cdb, data_in_max: block, ..UnitCommand::default() };
                match self.run(&one, Vec::new()).await {
                    Ok(response) => break response,
                    Err(error) if corrupt_block(&error).is_some() && back < OLDER_MAX => back += 1,
                    Err(error) => {
                        return Err(corrupt_block(&error).map_or(error, BlockError::NotAuthentic));
                    }
                }
            };
            // Which version is authentic is known now, so that the target can delete the others.
            self.send_reports().await?;
            match &mut found {
                None => found = Some(response),
                Some(found) => found.data_in.extend(response.data_in),
            }
        }
        found.ok_or(BlockError::Malformed("READ of no block"))
    }

    /// Sends all waiting reports about blocks.
    pub(crate) async fn send_reports(&self) -> Result<(), BlockError> {
        loop {
            let reports = self.take_reports(REPORTS_MAX);
            if reports.is_empty() {
                return Ok(());
            }
            let list: Vec<u8> = reports.iter().flat_map(BlockReport::encode).collect();
            let length = u32::try_from(list.len()).unwrap_or(u32::MAX);
            let mut cdb = [0; 16];
            cdb[0] = REPORT_BLOCKS;
            cdb[10..14].copy_from_slice(&length.to_be_bytes());
            let command = UnitCommand {
                name: "REPORT BLOCKS",
                cdb: Bytes::copy_from_slice(&cdb),
                data_out: vec![list.into()],
                ..UnitCommand::default()
            };
            self.run(&command, Vec::new()).await?;
        }
    }
}

/// Turns READ (16) into READ OLDER VERSION.
fn older(read: &Bytes, back: u8) -> Bytes {
    let mut cdb = read.to_vec();
    (cdb[0], cdb[1]) = (READ_OLDER_VERSION, back);
    cdb.into()
}
