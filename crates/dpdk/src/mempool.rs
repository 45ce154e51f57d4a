//! Pools of packet buffers.
//!
//! Receive buffers are in an area of their own, apart from their descriptors (`rte_mbuf`): DPDK
//! calls that a pool with pinned external buffers. So all packets of a pool can be lent as one
//! slice, and writing to it only changes packets.

use std::ffi::CString;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, Ordering};

use crate::eal::Eal;
use crate::error::Error;
use crate::sys;

/// Buffers cached per thread; DPDK allows up to 512.
pub(crate) const CACHE: u32 = 256;

/// Alignment of buffers: a cache line.
const LINE: u32 = 64;

/// Numbers the names of pools and their memory, which must differ.
static NUMBER: AtomicU32 = AtomicU32::new(0);

/// A pool of packet buffers. It lives as long as the environment, because devices and other threads
/// may hold its buffers.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Mempool {
    pub raw: NonNull<sys::rte_mempool>,
}

// SAFETY: DPDK's pools may be used by any thread (they are created for several producers and
// consumers); only the receiving queue uses the area.
unsafe impl Send for Mempool {}

/// A contiguous area of memory.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Area {
    pub start: NonNull<u8>,
    pub length: usize,
}

impl Mempool {
    /// `count` buffers to receive packets of up to `longest` bytes, and their memory.
    pub(crate) fn to_receive(
        _: &Eal,
        count: u32,
        longest: u32,
        socket: i32,
    ) -> Result<(Mempool, Area), Error> {
        let size = buffer_bytes(longest);
        let name = name();
        // With physical addresses no buffer crosses pages; the extra room makes up for their ends.
        let length = (count as usize + count as usize / 64 + 1) * usize::from(size);
        // SAFETY: the environment runs; the name is a string.
        let zone =
            unsafe { sys::rte_memzone_reserve_aligned(name.as_ptr(), length, socket, 0, LINE) };
        let step = format!("{count} packet buffers of {size} bytes");
        let zone = NonNull::new(zone.cast_mut()).ok_or_else(|| Error::last(&step))?;
        // SAFETY: the zone's description lives as long as the zone.
        let zone = unsafe { zone.as_ref() };
        // SAFETY: a zone has an address; the union holds no other form.
        let start = unsafe { zone.__bindgen_anon_1.addr }.cast::<u8>();
        let start = NonNull::new(start).ok_or_else(|| Error::last(&step))?;
        // SAFETY: the zone has `length` bytes, unknown to anybody else. Zeros initialise every
        // byte.
        unsafe { start.write_bytes(0, length) };
        let runs = runs(start, length, zone.hugepage_sz as usize, size);
        // SAFETY: the runs describe memory of the zone, which is never freed.
        let raw = unsafe {
            sys::rte_pktmbuf_pool_create_extbuf(
                name.as_ptr(),
                count,
                CACHE,
                0,
                size,
                socket,
                runs.as_ptr(),
                runs.len() as u32,
            )
        };
        let raw = NonNull::new(raw).ok_or_else(|| Error::last(&step))?;
        Ok((Mempool { raw }, Area { start, length }))
    }

    /// `count` buffers for copies to be sent, of up to `longest` bytes.
    pub(crate) fn to_send(
        _: &Eal,
        count: u32,
        longest: u32,
        socket: i32,
    ) -> Result<Mempool, Error> {
        let size = buffer_bytes(longest);
        // SAFETY: the environment runs; the name is a string.
        let raw =
            unsafe { sys::rte_pktmbuf_pool_create(name().as_ptr(), count, CACHE, 0, size, socket) };
        let step = format!("{count} packet buffers of {size} bytes");
        Ok(Mempool { raw: NonNull::new(raw).ok_or_else(|| Error::last(&step))? })
    }
}

/// Bytes of a buffer: DPDK's headroom and the packet. At most 65,535.
fn buffer_bytes(longest: u32) -> u16 {
    let bytes = (sys::RTE_PKTMBUF_HEADROOM + longest).next_multiple_of(LINE);
    u16::try_from(bytes).unwrap_or((u16::MAX as u32 / LINE * LINE) as u16)
}

fn name() -> CString {
    let number = NUMBER.fetch_add(1, Ordering::Relaxed);
    CString::new(format!("fenxi{number}")).unwrap_or_default()
}

/// The parts of an area that are contiguous for the device, too: with physical addresses each page
/// may be elsewhere.
fn runs(start: NonNull<u8>, length: usize, page: usize, size: u16) -> Vec<sys::rte_pktmbuf_extmem> {
    let mut runs: Vec<sys::rte_pktmbuf_extmem> = Vec::new();
    let mut at = 0;
    while at < length {
        // SAFETY: inside the area.
        let address = unsafe { start.add(at) };
        let to_boundary = page - address.as_ptr() as usize % page;
        let bytes = to_boundary.min(length - at);
        // SAFETY: only queries the page's address.
        let device_address = unsafe { sys::rte_mem_virt2iova(address.as_ptr().cast()) };
        match runs.last_mut() {
            // Contiguous; or device addresses are unknown, as without huge pages, and do not
            // matter.
            Some(run)
                if run.buf_iova.wrapping_add(run.buf_len as u64) == device_address
                    || run.buf_iova == device_address =>
            {
                run.buf_len += bytes;
            }
            _ => runs.push(sys::rte_pktmbuf_extmem {
                buf_ptr: address.as_ptr().cast(),
                buf_iova: device_address,
                buf_len: bytes,
                elt_size: size,
            }),
        }
        at += bytes;
    }
    runs.retain(|run| run.buf_len >= usize::from(size));
    runs
}
