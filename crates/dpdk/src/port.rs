//! Devices: opens them with their queues, reads link and counters, closes them.

use std::ffi::{CStr, CString};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::eal::Eal;
use crate::error::{ENOTSUP, Error, ErrorKind, check};
use crate::mempool::{CACHE, Mempool};
use crate::queue::{BURST_MAX, RxQueue, TxQueue};
use crate::sys;

/// Bytes of an Ethernet header and of two VLAN tags.
const LINK_HEADERS: u32 = 14 + 2 * 4;
/// Minimum room of a buffer, which many network cards require.
const LEAST_ROOM: u32 = 2048;
/// Maximum packet that fits a buffer.
const LONGEST: u32 = 65_408;
/// Ring size if the device does not recommend one.
const RING: u16 = 1024;
/// The Toeplitz key, repeated, that gives both directions of a flow the same hash (Woo and Park,
/// 2012).
const SYMMETRIC: [u8; 2] = [0x6d, 0x5a];
/// Bytes of the key if the device does not say.
const KEY_BYTES: usize = 40;
/// This driver assumes that buffers follow their descriptors, and would overwrite other memory.
const UNFIT_DRIVER: &str = "net_af_xdp";

/// How a port is opened.
#[derive(Clone, Debug)]
pub struct PortSettings {
    /// The device's name.
    pub device: String,
    /// Receive queues, over which the device spreads flows.
    pub queues: u16,
    /// Packet buffers per queue.
    pub mbufs: u32,
    /// Whether packets for others are received.
    pub is_promiscuous: bool,
    /// Whether to open as many send queues.
    pub sends: bool,
}

/// A queue in each direction.
#[derive(Debug)]
pub struct PortQueue {
    /// Receiving.
    pub rx: RxQueue,
    /// Sending, if requested.
    pub tx: Option<TxQueue>,
}

/// The state of a link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Link {
    /// It carries packets.
    Up,
    /// It does not.
    Down,
    /// The device is gone.
    Removed,
}

/// An open device; closed when its last queue is dropped.
#[derive(Debug)]
pub struct Port {
    _eal: Arc<Eal>,
    id: u16,
    name: String,
    driver: String,
    mtu: u16,
    queues: u16,
    has_symmetric_hash: AtomicBool,
}

impl Port {
    /// Opens and starts a device. Once: when it is closed, or opening fails, DPDK releases it.
    ///
    /// # Errors
    /// There is no such device, it has too few queues, there is no memory, …
    pub fn open(eal: &Arc<Eal>, settings: &PortSettings) -> Result<Vec<PortQueue>, Error> {
        let id = find(&settings.device)?;
        let info = info(id)?;
        let port = Arc::new(Port {
            _eal: eal.clone(),
            id,
            name: settings.device.clone(),
            driver: driver(&info),
            mtu: mtu(id)?,
            queues: settings.queues.max(1),
            has_symmetric_hash: AtomicBool::new(false),
        });
        if port.driver == UNFIT_DRIVER {
            return Err(Error::new(
                ErrorKind::Setting,
                format!(
                    "the driver {UNFIT_DRIVER} is not served; name another device of this interface"
                ),
            ));
        }
        port.check_queues(&info)?;
        port.configure(&info, settings.sends)?;
        let queues = port.set_up(&info, settings)?;
        port.start(settings.is_promiscuous, &info)?;
        Ok(queues)
    }

    pub(crate) fn id(&self) -> u16 {
        self.id
    }

    /// The device's name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Maximum frame to send: the MTU and the link's headers.
    pub fn frame_max(&self) -> u32 {
        u32::from(self.mtu) + LINK_HEADERS
    }

    /// Whether the device computes a hash that is the same for both directions of a flow.
    pub fn has_symmetric_hash(&self) -> bool {
        self.has_symmetric_hash.load(Ordering::Relaxed)
    }

    /// The current state of the link. Does not wait for the device.
    pub fn link(&self) -> Link {
        let mut link = sys::rte_eth_link::default();
        // SAFETY: the port is open.
        let (is_removed, code) = unsafe {
            let is_removed = sys::rte_eth_dev_is_removed(self.id) == 1;
            (is_removed, sys::rte_eth_link_get_nowait(self.id, &mut link))
        };
        match (is_removed, code, link.link_status() != 0) {
            (true, ..) => Link::Removed,
            (false, 0, false) => Link::Down,
            // A driver that does not know has no link to lose.
            (false, ..) => Link::Up,
        }
    }

    /// Packets since the device was opened that found no room in its queues, or no buffer.
    pub fn lost(&self) -> u64 {
        let mut stats = sys::rte_eth_stats::default();
        // SAFETY: the port is open. If it fails, the counters stay 0.
        unsafe { sys::rte_eth_stats_get(self.id, &mut stats) };
        stats.imissed + stats.rx_nombuf
    }

    /// With several queues, the device must spread flows by a hash with our key.
    fn check_queues(&self, info: &sys::rte_eth_dev_info) -> Result<(), Error> {
        let refused = |why: String| Err(Error::new(ErrorKind::Setting, why));
        let (queues, driver) = (self.queues, &self.driver);
        if queues > 1 && rss_types(info) == 0 {
            return refused(format!(
                "{queues} flow workers need a device that spreads flows over queues by a hash \
                 (RSS), which {driver} does not; use one flow worker (pipeline.layout)"
            ));
        }
        if queues > info.max_rx_queues {
            return refused(format!(
                "{queues} flow workers need a receive queue each, and {driver} has {} here; use \
                 fewer (pipeline.layout)",
                info.max_rx_queues
            ));
        }
        if self.frame_max() > LONGEST {
            return refused(format!(
                "an MTU of {}; at most {} fits a buffer",
                self.mtu,
                LONGEST - LINK_HEADERS
            ));
        }
        Ok(())
    }

    /// Requests no offloads (VLAN tags stay, nothing is merged, checksums are left alone) except
    /// the hash if flows are spread.
    fn configure(&self, info: &sys::rte_eth_dev_info, sends: bool) -> Result<(), Error> {
        let mut conf = sys::rte_eth_conf::default();
        conf.rxmode.mtu = self.mtu.into();
        let mut key: Vec<u8> = SYMMETRIC.into_iter().cycle().take(key_bytes(info)).collect();
        if self.queues > 1 {
            conf.rxmode.mq_mode = sys::rte_eth_rx_mq_mode_RTE_ETH_MQ_RX_RSS;
            // SAFETY: returns a constant.
            conf.rxmode.offloads = unsafe { sys::fenxi_rss_offload() } & info.rx_offload_capa;
            conf.rx_adv_conf.rss_conf = sys::rte_eth_rss_conf {
                rss_key: key.as_mut_ptr(),
                rss_key_len: key.len() as u8,
                rss_hf: rss_types(info),
            };
            self.has_symmetric_hash.store(true, Ordering::Relaxed);
        }
        let send_queues = if sends { self.queues } else { 0 };
        // SAFETY: the port is not started. The key is read during the call.
        let code = unsafe { sys::rte_eth_dev_configure(self.id, self.queues, send_queues, &conf) };
        check("cannot be configured", code).map(drop)
    }

    fn set_up(
        self: &Arc<Self>,
        info: &sys::rte_eth_dev_info,
        settings: &PortSettings,
    ) -> Result<Vec<PortQueue>, Error> {
        let or_ours = |size: u16| if size == 0 { RING } else { size };
        let mut received = or_ours(info.default_rxportconf.ring_size);
        let mut sent = or_ours(info.default_txportconf.ring_size);
        // SAFETY: the port is configured.
        let code =
            unsafe { sys::rte_eth_dev_adjust_nb_rx_tx_desc(self.id, &mut received, &mut sent) };
        check("sizes of rings", code)?;
        // The rings, a lent burst, a burst on its way, and the caches of two threads.
        let held = u32::from(received) + u32::from(sent) + 2 * BURST_MAX as u32 + 3 * CACHE;
        if settings.mbufs < held {
            let mbufs = settings.mbufs;
            let line =
                format!("{mbufs} packet buffers; its rings and bursts hold {held} (dpdk.mbufs)");
            return Err(Error::new(ErrorKind::Setting, line));
        }
        // SAFETY: the port exists.
        let socket = unsafe { sys::rte_eth_dev_socket_id(self.id) };
        let longest = self.frame_max().max(LEAST_ROOM);
        let mut queues = Vec::new();
        for queue in 0..self.queues {
            let (pool, area) = Mempool::to_receive(&self._eal, settings.mbufs, longest, socket)?;
            let (any, default) = (sys::SOCKET_ID_ANY as u32, std::ptr::null());
            let raw = pool.raw.as_ptr();
            // SAFETY: the port is configured and not started; the pool lives as long as the
            // environment.
            let code =
                unsafe { sys::rte_eth_rx_queue_setup(self.id, queue, received, any, default, raw) };
            check(&format!("receive queue {queue}"), code)?;
            let rx = RxQueue::new(self.clone(), queue, pool, area);
            let tx = match settings.sends {
                true => {
                    let count = u32::from(sent) + BURST_MAX as u32 + 2 * CACHE;
                    let pool = Mempool::to_send(&self._eal, count, longest, socket)?;
                    let default = std::ptr::null();
                    // SAFETY: the port is configured and not started.
                    let code =
                        unsafe { sys::rte_eth_tx_queue_setup(self.id, queue, sent, any, default) };
                    check(&format!("send queue {queue}"), code)?;
                    Some(TxQueue::new(self.clone(), queue, pool))
                }
                false => None,
            };
            queues.push(PortQueue { rx, tx });
        }
        Ok(queues)
    }

    fn start(&self, is_promiscuous: bool, info: &sys::rte_eth_dev_info) -> Result<(), Error> {
        // SAFETY: the port and its queues are set up.
        let code = unsafe { sys::rte_eth_dev_start(self.id) };
        check("cannot be started", code)?;
        self.spread(info)?;
        if is_promiscuous {
            // SAFETY: the port runs.
            let code = unsafe { sys::rte_eth_promiscuous_enable(self.id) };
            // A driver without this has no filter to open.
            if code != -ENOTSUP {
                check("cannot be made promiscuous", code)?;
            }
        }
        // SAFETY: the port runs. On failure counters continue.
        unsafe { sys::rte_eth_stats_reset(self.id) };
        Ok(())
    }

    /// Assigns hashes to queues in turn, the same on every device, so that the n-th queues of all
    /// devices have the same flows.
    fn spread(&self, info: &sys::rte_eth_dev_info) -> Result<(), Error> {
        let size = info.reta_size;
        if self.queues < 2 || size == 0 {
            return Ok(());
        }
        let group = sys::RTE_ETH_RETA_GROUP_SIZE as u16;
        let entry = |i: usize| sys::rte_eth_rss_reta_entry64 {
            mask: u64::MAX,
            reta: std::array::from_fn(|j| ((i * usize::from(group) + j) as u16) % self.queues),
        };
        let mut table: Vec<_> = (0..usize::from(size.div_ceil(group))).map(entry).collect();
        // SAFETY: the table has `size` entries.
        let code = unsafe { sys::rte_eth_dev_rss_reta_update(self.id, table.as_mut_ptr(), size) };
        match code {
            // The table cannot be changed, and is as DPDK asks drivers to start: in turn.
            code if code == -ENOTSUP => Ok(()),
            code => check("table of queues (RETA)", code).map(drop),
        }
    }
}

impl Drop for Port {
    fn drop(&mut self) {
        // SAFETY: its queues hold the port, so none is left. Packets in its rings return to their
        // pools, which live as long as the environment. Failures cannot be handled.
        unsafe {
            sys::rte_eth_promiscuous_disable(self.id);
            sys::rte_eth_dev_stop(self.id);
            sys::rte_eth_dev_close(self.id);
        }
    }
}

fn find(device: &str) -> Result<u16, Error> {
    let name = CString::new(device).unwrap_or_default();
    let mut id = 0;
    // SAFETY: the environment runs, since the caller holds it; the name is a string.
    match unsafe { sys::rte_eth_dev_get_port_by_name(name.as_ptr(), &mut id) } {
        0 => Ok(id),
        _ => Err(Error::new(ErrorKind::NoDevice, "no such DPDK device")),
    }
}

fn info(id: u16) -> Result<sys::rte_eth_dev_info, Error> {
    let mut info = sys::rte_eth_dev_info::default();
    // SAFETY: fills the description.
    let code = unsafe { sys::rte_eth_dev_info_get(id, &mut info) };
    check("its properties", code)?;
    Ok(info)
}

fn mtu(id: u16) -> Result<u16, Error> {
    let mut mtu = 0;
    // SAFETY: fills the number.
    check("its MTU", unsafe { sys::rte_eth_dev_get_mtu(id, &mut mtu) })?;
    Ok(mtu)
}

fn driver(info: &sys::rte_eth_dev_info) -> String {
    if info.driver_name.is_null() {
        return String::new();
    }
    // SAFETY: a string of the driver, which stays loaded.
    let name = unsafe { CStr::from_ptr(info.driver_name) };
    name.to_string_lossy().into_owned()
}

/// The parts of addresses and ports that the device can hash.
fn rss_types(info: &sys::rte_eth_dev_info) -> u64 {
    // SAFETY: returns a constant.
    unsafe { sys::fenxi_rss_types() & info.flow_type_rss_offloads }
}

fn key_bytes(info: &sys::rte_eth_dev_info) -> usize {
    match info.hash_key_size {
        0 => KEY_BYTES,
        size => size.into(),
    }
}
