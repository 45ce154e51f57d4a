//! The devices of one task, used in turn, and the series that wait for a second device because
//! their first failed.
//!
//! A series is retried once, on the next free device that is up, which is another one unless a
//! probe has brought the first back in the meantime. Retries go before anything new. So the series
//! in flight for the first time and the series that wait for a retry are together never more than
//! all devices hold, and the queue of retries needs no more room.

use crate::batching::{Fire, Trigger};
use crate::device_slot::{DeviceSlot, Model};
use crate::executors::{Executors, bit};
use crate::rows::{Retry, Row};
use crate::{Accelerator, DeviceProfile};
use accel::{Profile, Sizes};
use std::collections::VecDeque;
use std::time::Duration;

/// All device slots, and whose turn it is.
pub(crate) struct Dispatch {
    pub device_slots: Vec<DeviceSlot>,
    /// Series that wait for their second device, in the order in which they failed.
    pub retries: VecDeque<Retry>,
    next: usize,
    /// Executors that are left to other tasks, as long as a device on another executor is up.
    left: u64,
    /// How many of the first executors are left to tasks with shorter goals.
    devices_left: usize,
    /// How long the largest batches of all tasks take together, if no plan can keep the goal.
    unreachable: Option<Duration>,
}

impl Dispatch {
    /// All devices have this model.
    pub fn new(accelerators: Vec<Accelerator>, model: Model) -> Self {
        let slots = accelerators.into_iter().map(|it| DeviceSlot::new(it, model));
        let mut dispatch = Self {
            device_slots: slots.collect(),
            retries: VecDeque::new(),
            next: 0,
            left: 0,
            devices_left: 0,
            unreachable: None,
        };
        dispatch.reserve();
        dispatch
    }

    /// Makes room for every retry there can be with these devices.
    pub fn reserve(&mut self) {
        let more = self.capacity().saturating_sub(self.retries.len());
        self.retries.reserve(more);
    }

    /// The series that all devices hold.
    pub fn capacity(&self) -> usize {
        self.device_slots.iter().map(|slot| slot.sizes().largest()).sum()
    }

    /// The rows on their way through a device, with its model.
    pub fn in_flight(&self) -> impl Iterator<Item = (Model, &Row)> {
        let slots = self.device_slots.iter();
        slots.flat_map(|slot| slot.rows.iter().map(|(row, _)| (slot.model(), row)))
    }

    /// The device slots that can take a batch, beginning with the one after the device slot last
    /// used.
    pub fn free(&self, executors: &Executors) -> impl Iterator<Item = (usize, &DeviceSlot)> {
        let (before, from) = self.device_slots.split_at(self.next);
        let in_turn = (self.next..).zip(from).chain((0..).zip(before));
        let left = self.left_now();
        in_turn.filter(move |(_, device_slot)| {
            let executor = device_slot.executor();
            device_slot.is_free() && executors.is_free(executor) && left & bit(executor) == 0
        })
    }

    /// Leaves the first executors to other tasks, and notes whether the goal is out of reach.
    pub fn spread(&mut self, devices_left: usize, unreachable: Option<Duration>) {
        (self.devices_left, self.unreachable) = (devices_left, unreachable);
        let own = self.executors().fold(0, |set, executor| set | bit(executor));
        let mut kept = own;
        for _ in 0..devices_left {
            // Clears the lowest executor.
            kept &= kept.saturating_sub(1);
        }
        self.left = own & !kept;
    }

    pub fn devices_left(&self) -> usize {
        self.devices_left
    }

    pub fn unreachable(&self) -> Option<Duration> {
        self.unreachable
    }

    /// The executors of the devices, in their order.
    pub fn executors(&self) -> impl Iterator<Item = u8> {
        self.device_slots.iter().map(DeviceSlot::executor)
    }

    /// Takes the executors that batches occupy, except hung devices' executors.
    pub fn take_executors(&self, executors: &mut Executors) {
        let busy = self.device_slots.iter().filter(|slot| slot.holds_executor());
        busy.for_each(|slot| executors.take(slot.executor()));
    }

    /// The sizes that the first device takes.
    pub fn sizes(&self) -> Option<&Sizes> {
        self.device_slots.first().map(DeviceSlot::sizes)
    }

    /// What batches take on the first device that is used and up, where that is known.
    pub fn profile(&self) -> Option<Profile> {
        self.typical()?.profile()
    }

    /// The profiles of the devices that have one, in the order of the devices.
    pub fn profiles(&self) -> impl Iterator<Item = Option<DeviceProfile>> {
        self.device_slots.iter().map(DeviceSlot::live_profile)
    }

    /// How often the devices' profiles have drifted.
    pub fn drifts(&self) -> u64 {
        let profiles = self.profiles().flatten();
        profiles.map(|profile| profile.drifts).sum()
    }

    /// Series on their way through a device that wait for a label, not for an audit.
    pub fn rows(&self) -> u64 {
        self.in_flight().filter(|(_, row)| row.audit.is_none()).count() as u64
    }

    /// A batch of retries, if there are any and a device is free.
    pub fn next_retry(&self, executors: &Executors) -> Option<(usize, Fire)> {
        if self.retries.is_empty() {
            return None;
        }
        let (i, device_slot) = self.free(executors).next()?;
        let take = self.retries.len().min(device_slot.sizes().largest());
        let fire = Fire {
            take,
            size: device_slot.sizes().fitting(take)?,
            trigger: Trigger::Retry,
            more: false,
        };
        Some((i, fire))
    }

    /// The executors left to others: none while only devices on them are up.
    fn left_now(&self) -> u64 {
        let is_own = |slot: &DeviceSlot| slot.is_up() && self.left & bit(slot.executor()) == 0;
        match self.left != 0 && self.device_slots.iter().any(is_own) {
            true => self.left,
            false => 0,
        }
    }

    /// The device that stands for all in plans: the first that is up and not left to others.
    fn typical(&self) -> Option<&DeviceSlot> {
        let left = self.left_now();
        let is_used = |slot: &&DeviceSlot| slot.is_up() && left & bit(slot.executor()) == 0;
        let slots = &self.device_slots;
        slots.iter().find(is_used).or(slots.first())
    }

    /// How many devices are up, busy or not.
    pub fn up(&self) -> usize {
        self.device_slots.iter().filter(|device_slot| device_slot.is_up()).count()
    }

    /// The next turn begins after this device slot.
    pub fn turn_after(&mut self, device_slot: usize) {
        self.next = (device_slot + 1) % self.device_slots.len();
    }

    /// Whether no series is on its way through a device, or waits for another.
    pub fn is_empty(&self) -> bool {
        self.retries.is_empty()
            && self.device_slots.iter().all(|device_slot| device_slot.rows.is_empty())
    }

    /// The largest batch that any device takes.
    pub fn largest(&self) -> usize {
        let sizes = self.device_slots.iter().map(|device_slot| device_slot.sizes().largest());
        sizes.max().unwrap_or(0)
    }
}
