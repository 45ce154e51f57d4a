//! Tells the program how to label flows.

use std::error::Error;

use aya::maps::{Array, MapData};
use aya::{Ebpf, Pod};

use super::layout::DEPTHS_MAX;
use super::net;
use crate::settings::KernelLabels;

/// As in `bpf/series.h`.
const CLASSES_MAX: usize = 255;
const NEVER: u32 = 0xffff;
const NO_CLASS: u8 = 0xff;

/// `struct deciding`.
#[derive(Clone, Copy)]
#[repr(C)]
struct Deciding {
    k: [u32; DEPTHS_MAX],
    sure: [u32; DEPTHS_MAX],
    contradicts: [u32; DEPTHS_MAX],
    sure_classes: u32,
    unknown: u32,
    least: [u32; CLASSES_MAX + 1],
    mark: [u32; CLASSES_MAX + 1],
    dscp: [u8; CLASSES_MAX + 1],
}

/// What the program treats as constants: `settings`.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct Constants {
    depths: u32,
    elements: u32,
    keeps_collecting: u32,
    is_ports_first: u32,
    pub marks: u32,
    mark_mask: u32,
    mark_overwrites: u32,
    marks_packets: u32,
    writes_dscp: u32,
}

/// `struct ports`.
#[derive(Clone, Copy)]
#[repr(C)]
struct Ports([u8; 1 << 16]);

#[expect(unsafe_code, reason = "promises about types")]
mod pod {
    use super::{Constants, Deciding, Pod, Ports};

    // SAFETY: integers without padding.
    unsafe impl Pod for Constants {}

    // SAFETY: integers without padding.
    unsafe impl Pod for Deciding {}
    // SAFETY: bytes.
    unsafe impl Pod for Ports {}
}

impl Deciding {
    fn new(labels: &KernelLabels) -> Deciding {
        let by_depth = |number: &dyn Fn(&crate::KernelDepth) -> u32| {
            std::array::from_fn(|i| labels.depths.get(i).map_or(0, number))
        };
        let marks = labels.marks.as_ref().map_or(&[][..], |it| &it.bits);
        Deciding {
            k: by_depth(&|it| it.k.into()),
            sure: by_depth(&|it| it.sure.into()),
            contradicts: by_depth(&|it| it.contradicts.map_or(NEVER, u32::from)),
            sure_classes: labels.sure_classes.into(),
            unknown: labels.sure_classes.into(),
            least: std::array::from_fn(|i| labels.least.get(i).map_or(0, |&it| it.into())),
            mark: std::array::from_fn(|i| marks.get(i).map_or(0, |&it| it)),
            dscp: std::array::from_fn(|i| {
                labels.dscp.get(i).copied().flatten().unwrap_or(NO_CLASS)
            }),
        }
    }
}

impl Constants {
    /// `marks`: whether the program can write marks.
    pub fn new(labels: &KernelLabels, marks: bool) -> Constants {
        let has_marks = marks;
        let marks = labels.marks.as_ref();
        Constants {
            depths: labels.depths.len() as u32,
            elements: labels.depths.last().map_or(1, |it| it.k.into()),
            keeps_collecting: labels.keeps_collecting.into(),
            is_ports_first: labels.is_ports_first.into(),
            marks: has_marks.into(),
            mark_mask: marks.map_or(0, |it| it.mask),
            mark_overwrites: marks.is_some_and(|it| it.overwrites).into(),
            marks_packets: (marks.is_some() && !has_marks).into(),
            writes_dscp: (!labels.dscp.is_empty()).into(),
        }
    }
}

impl Ports {
    fn new(labels: &KernelLabels, protocol: u8) -> Ports {
        let mut classes = [NO_CLASS; 1 << 16];
        for port in labels.ports.iter().filter(|it| it.protocol == protocol) {
            classes[usize::from(port.port)] = port.class;
        }
        Ports(classes)
    }
}

/// Fills the maps by which the program labels flows.
pub fn fill(ebpf: &mut Ebpf, labels: &KernelLabels) -> Result<(), Box<dyn Error>> {
    array(ebpf, "deciding")?.set(0, Deciding::new(labels), 0)?;
    let mut ports = array(ebpf, "ports")?;
    ports.set(0, Ports::new(labels, 6), 0)?;
    ports.set(1, Ports::new(labels, 17), 0)?;
    match labels.net.is_empty() {
        true => Ok(()),
        false => net::fill(ebpf, &labels.net, labels.generation),
    }
}

fn array<'a, T: Pod>(
    ebpf: &'a mut Ebpf,
    name: &str,
) -> Result<Array<&'a mut MapData, T>, Box<dyn Error>> {
    Ok(ebpf.map_mut(name).ok_or("the object lacks a map")?.try_into()?)
}
