//! The rings between several producers and several consumers, each end sorted to its owner.

use crate::{Consumer, Producer, ring};

/// The rings of one pipeline. Every ring still has exactly one producer and one consumer.
pub struct Mesh<T> {
    /// By producer's owner, in the order of the places.
    pub producers: Vec<Vec<Producer<T>>>,
    /// By consumer's owner; each with the number of the owner at its other end.
    pub consumers: Vec<Vec<(usize, Consumer<T>)>>,
}

impl<T: Copy + Default> Mesh<T> {
    /// A ring of `slots` slots for each place, which is a pair of owners: who writes, who reads. Owners are numbered from 0.
    #[must_use]
    pub fn new(places: impl IntoIterator<Item = (usize, usize)>, slots: usize) -> Self {
        let mut mesh = Self {
            producers: Vec::new(),
            consumers: Vec::new(),
        };
        for (writer, reader) in places {
            let (producer, consumer) = ring(slots);
            at(&mut mesh.producers, writer).push(producer);
            at(&mut mesh.consumers, reader).push((writer, consumer));
        }
        mesh
    }
}

fn at<T>(ends: &mut Vec<Vec<T>>, owner: usize) -> &mut Vec<T> {
    if ends.len() <= owner {
        ends.resize_with(owner + 1, Vec::new);
    }
    &mut ends[owner]
}
