//! A block unit as an asynchronous disk.
//!
//! Does: splits requests into commands, distributes them over sessions, and flushes all of them.
//! Does not: cache.
//! Contract: a successful flush covers all writes of this client that were acknowledged before it
//! was called. A loss is reported by the next flush of each [`FlushCursor`].

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};

use bytes::Bytes;
use futures_util::future::join_all;
use sealstone_initiator::{Dial, Environment, Residual, TargetUrl};

use crate::command::{self, AllocationExtent};
use crate::error::{LBA_STATUS, SYNCHRONIZE, UNMAP, WRITE_SAME};
use crate::flush::{FlushGroup, LossCounter};
use crate::unit_path::{KnownUnit, UnitCommand, UnitPath};
use crate::{BlockError, FlushCursor, SESSIONS_MAX, UnitClientOptions, UnitGeometry, UnitIdentity};

/// Bytes of a buffer of zeros, for targets without WRITE SAME.
const ZEROS: usize = 256 << 10;

/// How blocks become zeros.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ZeroMode {
    /// They may be unmapped.
    MayUnmap,
    /// They keep their space.
    Allocate,
}

/// A block unit. Clones share its sessions.
#[derive(Clone)]
pub struct BlockUnitClient(Arc<UnitState>);

struct UnitState {
    paths: Vec<UnitPath>,
    next_path: AtomicUsize,
    known: KnownUnit,
    losses: Arc<LossCounter>,
    /// Sessions established so far.
    links: Arc<AtomicU64>,
    flushes: FlushGroup,
    /// Whether the target supports WRITE SAME without data-out; false after it refused one.
    writes_same_without_data: AtomicBool,
    /// Whether the target supports WRITE SAME; false after it refused one.
    writes_same: AtomicBool,
}

impl BlockUnitClient {
    /// Logs in to the unit at `url` over connections of `dial`. Each session is attempted once.
    ///
    /// # Errors
    /// [`BlockError::Session`], `NoUnit`, `NotADisk`, `Malformed`, or another failure of the
    /// target.
    pub async fn open(
        dial: Arc<dyn Dial>,
        url: &TargetUrl,
        environment: &dyn Environment,
        options: &UnitClientOptions,
    ) -> Result<Self, BlockError> {
        let (losses, links) = (Arc::new(LossCounter::default()), Arc::new(AtomicU64::new(0)));
        let mut paths = Vec::new();
        let mut known = None;
        for index in 0..options.sessions.clamp(1, SESSIONS_MAX) {
            let mut config = options.session.clone();
            config.target_name = Some(url.target.clone());
            config.protected_lun = url.lun;
            if index > 0 {
                environment.fill_random(&mut config.isid[1..]);
            }
            let path =
                UnitPath::new(dial.clone(), config, url.lun, options, losses.clone(), Arc::clone(&links));
            let here = path.open().await?;
            known.get_or_insert(here);
            paths.push(path);
        }
        let known = known.ok_or(BlockError::NoUnit)?;
        Ok(Self(Arc::new(UnitState {
            paths,
            next_path: AtomicUsize::new(0),
            known,
            losses,
            links,
            flushes: FlushGroup::default(),
            writes_same_without_data: AtomicBool::new(true),
            writes_same: AtomicBool::new(true),
        })))
    }

    /// Returns size and limits of the unit.
    #[must_use]
    pub fn geometry(&self) -> &UnitGeometry {
        &self.0.known.geometry
    }

    /// Returns the names of the unit.
    #[must_use]
    pub fn identity(&self) -> &UnitIdentity {
        &self.0.known.identity
    }

    /// Returns the cursor of a new user. Losses that no user has seen are reported to it.
    #[must_use]
    pub fn flush_cursor(&self) -> FlushCursor {
        self.0.losses.cursor()
    }

    /// Reads `length` bytes.
    ///
    /// # Errors
    /// [`BlockError`]; `OutOfRange` and `Unaligned` before anything is sent.
    pub async fn read(&self, offset: u64, length: u64) -> Result<Vec<u8>, BlockError> {
        self.check(offset, length)?;
        let length = usize::try_from(length).map_err(|_| BlockError::OutOfRange { offset, length })?;
        self.read_into(offset, vec![0; length]).await
    }

    /// Fills `buffer` from `offset` on and returns it, without a copy.
    ///
    /// # Errors
    /// As [`Self::read`].
    pub async fn read_into(&self, offset: u64, buffer: Vec<u8>) -> Result<Vec<u8>, BlockError> {
        let length = buffer.len() as u64;
        self.check(offset, length)?;
        if length == 0 {
            return Ok(buffer);
        }
        if length <= self.geometry().transfer_max {
            return self.read_piece(offset, buffer).await;
        }
        let mut bytes = Vec::with_capacity(buffer.len());
        for (at, piece) in self.pieces(offset, length, self.geometry().transfer_max) {
            let piece = vec![0; usize::try_from(piece).unwrap_or(usize::MAX)];
            bytes.extend(self.read_piece(at, piece).await?);
        }
        Ok(bytes)
    }

    /// Reads as much as one command can.
    async fn read_piece(&self, offset: u64, buffer: Vec<u8>) -> Result<Vec<u8>, BlockError> {
        let length = buffer.len();
        let command = UnitCommand {
            name: "READ",
            cdb: command::read(self.lba(offset), self.blocks(length as u64)),
            data_in_max: length,
            ..UnitCommand::default()
        };
        let (lba, blocks) = (self.lba(offset), self.blocks(length as u64));
        let response = self.path().read_verified(&command, buffer, lba, blocks).await?;
        if response.data_in.len() != length || response.read_residual != Residual::None {
            return Err(BlockError::Malformed("READ returned another number of bytes"));
        }
        Ok(response.data_in)
    }

    /// Writes; `durable` (FUA): before it returns, the data are on stable storage.
    ///
    /// # Errors
    /// [`BlockError`]. After an error each block has its old or its new content.
    pub async fn write(&self, offset: u64, data: Bytes, durable: bool) -> Result<(), BlockError> {
        let losses = self.0.losses.count();
        let has_fua = durable && self.geometry().has_fua;
        self.send(offset, data, has_fua, None).await?;
        if durable && !has_fua { self.harden(losses).await } else { Ok(()) }
    }

    /// Writes over one of the first `sessions` sessions, see [`Self::sessions`]. On a unit that
    /// keeps the order, the write does not survive a power failure without all earlier ones.
    ///
    /// # Errors
    /// As [`Self::write`]; [`BlockError::SessionReplaced`] if there is no such session.
    pub async fn write_ordered(&self, offset: u64, data: Bytes, sessions: u64) -> Result<(), BlockError> {
        self.send(offset, data, false, Some(sessions)).await
    }

    /// Returns the number of sessions established so far. After a flush that began later, all
    /// writes over these sessions are handled by the same run of the target.
    #[must_use]
    pub fn sessions(&self) -> u64 {
        self.0.links.load(Ordering::SeqCst)
    }

    async fn send(
        &self,
        offset: u64,
        data: Bytes,
        has_fua: bool,
        sessions_max: Option<u64>,
    ) -> Result<(), BlockError> {
        self.check(offset, data.len() as u64)?;
        for (at, piece) in self.pieces(offset, data.len() as u64, self.geometry().transfer_max) {
            let start = usize::try_from(at - offset).unwrap_or(usize::MAX);
            let end = start.saturating_add(usize::try_from(piece).unwrap_or(usize::MAX));
            let command = UnitCommand {
                name: "WRITE",
                cdb: command::write(self.lba(at), self.blocks(piece), has_fua),
                data_out: vec![data.slice(start..end)],
                leaves_unflushed: !has_fua,
                sessions_max,
                ..UnitCommand::default()
            };
            let response = self.path().run(&command, Vec::new()).await?;
            if response.write_residual != Residual::None {
                return Err(BlockError::Malformed("WRITE used another number of bytes"));
            }
        }
        Ok(())
    }

    /// Makes the changes of one request durable that began when `losses` were counted. A loss since
    /// then fails the request, and the next flush of each user still reports it.
    async fn harden(&self, losses: u64) -> Result<(), BlockError> {
        self.0.flushes.run(|| self.synchronize()).await?;
        if self.0.losses.count() == losses { Ok(()) } else { Err(BlockError::LostWrites) }
    }

    /// Makes all acknowledged writes durable.
    ///
    /// # Errors
    /// `LostWrites` if the target lost acknowledged writes, once for each cursor; another
    /// [`BlockError`] if the target refused the flush or was unavailable.
    pub async fn flush(&self, cursor: &FlushCursor) -> Result<(), BlockError> {
        match self.0.flushes.run(|| self.synchronize()).await {
            Ok(()) | Err(BlockError::LostWrites) => self.0.losses.check(cursor),
            Err(error) => {
                // This error reports the loss, if there is one, to this user.
                let _ = self.0.losses.check(cursor);
                Err(error)
            }
        }
    }

    /// Flushes on every path at the same time, since a target counts lost writes per path.
    async fn synchronize(&self) -> Result<(), BlockError> {
        let flushes = self.0.paths.iter().map(|path| self.synchronize_path(path));
        let failures = join_all(flushes).await.into_iter().filter_map(Result::err);
        // A loss is recorded, so another error is more important.
        match failures.min_by_key(|error| matches!(error, BlockError::LostWrites)) {
            Some(error) => Err(error),
            None => Ok(()),
        }
    }

    async fn synchronize_path(&self, path: &UnitPath) -> Result<(), BlockError> {
        let command =
            UnitCommand { name: SYNCHRONIZE, cdb: command::synchronize_cache(), ..UnitCommand::default() };
        path.send_reports().await?;
        let covered = path.begin_flush();
        let Err(error) = path.run(&command, Vec::new()).await else {
            path.end_flush(covered);
            return Ok(());
        };
        // After a failed flush the target may have dropped the data: no later flush may hide that
        // from other users. Without a status the outcome is unknown.
        let has_status =
            !matches!(&error, BlockError::Unavailable { .. } | BlockError::Session(_) | BlockError::Busy);
        if has_status {
            tracing::error!(%error, "the target failed to flush acknowledged writes");
            self.0.losses.record();
            path.end_flush(covered);
        }
        Err(error)
    }

    /// Unmaps blocks; a hint. A unit that cannot unmap ignores it. `durable` is that of
    /// [`Self::write`].
    ///
    /// # Errors
    /// [`BlockError`].
    pub async fn unmap(&self, offset: u64, length: u64, durable: bool) -> Result<(), BlockError> {
        let losses = self.0.losses.count();
        self.send_unmap(offset, length, None).await?;
        if durable { self.harden(losses).await } else { Ok(()) }
    }

    /// As [`Self::unmap`], in the order of [`Self::write_ordered`].
    ///
    /// # Errors
    /// Those of both.
    pub async fn unmap_ordered(&self, offset: u64, length: u64, sessions: u64) -> Result<(), BlockError> {
        self.send_unmap(offset, length, Some(sessions)).await
    }

    async fn send_unmap(
        &self,
        offset: u64,
        length: u64,
        sessions_max: Option<u64>,
    ) -> Result<(), BlockError> {
        self.check(offset, length)?;
        let piece_max = u64::from(self.geometry().unmap_blocks_max) * u64::from(self.geometry().block_bytes);
        if piece_max == 0 {
            return Ok(());
        }
        for (at, piece) in self.pieces(offset, length, piece_max) {
            let (cdb, list) = command::unmap(self.lba(at), self.blocks(piece));
            let command = UnitCommand {
                name: UNMAP,
                cdb,
                data_out: vec![list],
                leaves_unflushed: true,
                sessions_max,
                ..UnitCommand::default()
            };
            match self.path().run(&command, Vec::new()).await {
                Ok(_) => {}
                Err(BlockError::Unsupported(_)) => break,
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Writes zeros, without sending them if the target supports WRITE SAME. `durable` is that of
    /// [`Self::write`].
    ///
    /// # Errors
    /// [`BlockError`].
    pub async fn write_zeros(
        &self,
        offset: u64,
        length: u64,
        mode: ZeroMode,
        durable: bool,
    ) -> Result<(), BlockError> {
        self.check(offset, length)?;
        let losses = self.0.losses.count();
        self.clear(offset, length, mode).await?;
        if durable { self.harden(losses).await } else { Ok(()) }
    }

    /// Writes zeros that are not durable.
    async fn clear(&self, offset: u64, length: u64, mode: ZeroMode) -> Result<(), BlockError> {
        let unmap = mode == ZeroMode::MayUnmap && self.geometry().unmaps_to_zeros;
        let block = u64::from(self.geometry().block_bytes);
        let piece_max = u64::from(self.geometry().write_same_blocks_max) * block;
        let mut left = self.pieces(offset, length, piece_max);
        let mut next = left.next();
        while let Some((at, piece)) = next {
            if !self.0.writes_same.load(Ordering::Relaxed) {
                return self.send_zeros(at, offset + length - at).await;
            }
            let has_data = !self.0.writes_same_without_data.load(Ordering::Relaxed);
            let zeros = has_data.then(|| Bytes::from(vec![0; self.geometry().block_bytes as usize]));
            let command = UnitCommand {
                name: WRITE_SAME,
                cdb: command::write_same(self.lba(at), self.blocks(piece), unmap, has_data),
                data_out: zeros.into_iter().collect(),
                leaves_unflushed: true,
                ..UnitCommand::default()
            };
            let outcome = self.path().run(&command, Vec::new()).await.and_then(|response| {
                match response.write_residual {
                    Residual::None => Ok(()),
                    _ if has_data => Err(BlockError::Malformed("WRITE SAME used another number of bytes")),
                    // The target ignored NDOB and expected a block.
                    _ => Err(BlockError::Unsupported(WRITE_SAME)),
                }
            });
            match outcome {
                Ok(()) => next = left.next(),
                Err(BlockError::Unsupported(_)) if has_data => {
                    self.0.writes_same.store(false, Ordering::Relaxed);
                }
                Err(BlockError::Unsupported(_)) => {
                    self.0.writes_same_without_data.store(false, Ordering::Relaxed);
                }
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Writes zeros as data.
    async fn send_zeros(&self, offset: u64, length: u64) -> Result<(), BlockError> {
        let zeros = Bytes::from(vec![0; ZEROS]);
        for (at, piece) in self.pieces(offset, length, (ZEROS as u64).min(self.geometry().transfer_max)) {
            let data = zeros.slice(..usize::try_from(piece).unwrap_or(ZEROS).min(ZEROS));
            self.write(at, data, false).await?;
        }
        Ok(())
    }

    /// Returns the allocation of the first part of an extent, from `offset` on: what one GET LBA
    /// STATUS describes. A unit that is not thin is allocated.
    ///
    /// # Errors
    /// [`BlockError`]; `Malformed` if the descriptors are not consecutive.
    pub async fn allocation(&self, offset: u64, length: u64) -> Result<Vec<AllocationExtent>, BlockError> {
        self.check(offset, length)?;
        let all = vec![AllocationExtent { offset, length, is_allocated: true }];
        if !self.geometry().is_thin || length == 0 {
            return Ok(all);
        }
        let block = u64::from(self.geometry().block_bytes);
        let command = UnitCommand {
            name: LBA_STATUS,
            cdb: command::lba_status(self.lba(offset)),
            data_in_max: command::STATUS_BYTES,
            ..UnitCommand::default()
        };
        let response = match self.path().run(&command, Vec::new()).await {
            Ok(response) => response,
            Err(BlockError::Unsupported(_)) => return Ok(all),
            Err(error) => return Err(error),
        };
        let listed =
            command::parse_lba_status(&response.data_in, self.lba(offset), self.geometry().bytes / block)
                .map_err(|_| BlockError::Malformed(LBA_STATUS))?;
        let end = offset + length;
        let extents = listed.into_iter().map_while(|(first, blocks, is_allocated)| {
            let (start, after) = (first * block, ((first + blocks) * block).min(end));
            (start < end).then(|| AllocationExtent { offset: start, length: after - start, is_allocated })
        });
        Ok(extents.collect())
    }

    /// Logs out; the next command connects again.
    pub async fn close(&self) {
        for path in &self.0.paths {
            path.close().await;
        }
    }

    fn path(&self) -> &UnitPath {
        let paths = &self.0.paths;
        let index = if paths.len() > 1 { self.0.next_path.fetch_add(1, Ordering::Relaxed) } else { 0 };
        &paths[index % paths.len()]
    }

    fn check(&self, offset: u64, length: u64) -> Result<(), BlockError> {
        let geometry = self.geometry();
        let block = u64::from(geometry.block_bytes);
        if !offset.is_multiple_of(block) || !length.is_multiple_of(block) {
            return Err(BlockError::Unaligned { block: geometry.block_bytes });
        }
        match offset.checked_add(length) {
            Some(end) if end <= geometry.bytes => Ok(()),
            _ => Err(BlockError::OutOfRange { offset, length }),
        }
    }

    fn lba(&self, offset: u64) -> u64 {
        offset / u64::from(self.geometry().block_bytes)
    }

    fn blocks(&self, length: u64) -> u32 {
        u32::try_from(length / u64::from(self.geometry().block_bytes)).unwrap_or(u32::MAX)
    }

    /// Splits an extent into pieces of at most `most` bytes.
    fn pieces(&self, offset: u64, length: u64, most: u64) -> impl Iterator<Item = (u64, u64)> + use<> {
        let most = most.max(1);
        (0..length.div_ceil(most)).map(move |index| {
            let at = index * most;
            (offset + at, most.min(length - at))
        })
    }
}
