//! Tells the program how to label flows.

use aya::maps::{Array, MapData};
use aya::{Ebpf, Pod};

use super::layout::DEPTHS_MAX;
use super::net::{self, Block, Cause};
use crate::settings::{KernelDepth, KernelLabels};

/// As in `bpf/net.h` and `bpf/series.h`.
const BESIDE: usize = 60 * 1024;
const CLASSES_MAX: usize = 255;
const NEVER: u32 = 0xffff;
const NO_CLASS: u8 = 0xff;

/// What the program treats as constants: `settings`.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct Constants {
    depths: u32,
    elements: u32,
    keeps_collecting: u32,
    reports_at_once: u32,
    is_ports_first: u32,
    pub marks: u32,
    marks_packets: u32,
    writes_dscp: u32,
}

/// `struct ports`.
#[derive(Clone, Copy)]
#[repr(C)]
struct Ports([u8; 1 << 16]);

#[expect(unsafe_code, reason = "promises about types")]
mod pod {
    use super::{Constants, Pod, Ports};

    // SAFETY: integers without padding.
    unsafe impl Pod for Constants {}
    // SAFETY: bytes.
    unsafe impl Pod for Ports {}
}

/// `struct deciding`.
fn deciding(labels: &KernelLabels, edition: u8) -> Vec<u8> {
    let by_depth = |number: fn(&KernelDepth) -> u32| -> [u32; DEPTHS_MAX] {
        std::array::from_fn(|i| labels.depths.get(i).map_or(0, number))
    };
    let by_class = |number: &dyn Fn(usize) -> Option<u32>| -> [u32; CLASSES_MAX + 1] {
        std::array::from_fn(|class| number(class).unwrap_or(0))
    };
    let marks = labels.marks.as_ref();
    let words = [
        &[edition.into()][..],
        &by_depth(|it| it.k.into()),
        &by_depth(|it| it.sure.into()),
        &by_depth(|it| it.contradicts.map_or(NEVER, u32::from)),
        &[labels.sure_classes.into(), labels.sure_classes.into()],
        &[marks.map_or(0, |it| it.mask), marks.is_some_and(|it| it.overwrites).into()],
        &by_class(&|class| labels.least.get(class).map(|&it| it.into())),
        &by_class(&|class| marks?.bits.get(class).copied()),
    ]
    .concat();
    let dscp = |class| labels.dscp.get(class).copied().flatten().unwrap_or(NO_CLASS);
    let bytes = words.into_iter().flat_map(u32::to_ne_bytes);
    bytes.chain((0..=CLASSES_MAX).map(dscp)).collect()
}

/// An edition: the network's blocks, and how labels are decided behind it in the first.
pub fn edition(labels: &KernelLabels, edition: u8) -> Result<Vec<Block>, Cause> {
    let mut blocks = match labels.net.is_empty() {
        true => vec![[0; size_of::<Block>()]],
        false => net::blocks(&labels.net, edition.into())?,
    };
    let deciding = deciding(labels, edition);
    blocks[0][BESIDE..BESIDE + deciding.len()].copy_from_slice(&deciding);
    Ok(blocks)
}

impl Constants {
    /// `marks`: whether the program can write marks.
    pub fn new(labels: &KernelLabels, marks: bool) -> Constants {
        Constants {
            depths: labels.depths.len() as u32,
            elements: labels.elements.into(),
            keeps_collecting: labels.keeps_collecting.into(),
            reports_at_once: labels.reports_at_once.into(),
            is_ports_first: labels.is_ports_first.into(),
            marks: marks.into(),
            marks_packets: (labels.marks.is_some() && !marks).into(),
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

/// Tells the program the labels of ports.
pub fn set_ports(ebpf: &mut Ebpf, labels: &KernelLabels) -> Result<(), Cause> {
    let ports = ebpf.map_mut("ports").ok_or("the object lacks a map")?;
    let mut ports: Array<&mut MapData, Ports> = ports.try_into()?;
    ports.set(0, Ports::new(labels, 6), 0)?;
    Ok(ports.set(1, Ports::new(labels, 17), 0)?)
}
