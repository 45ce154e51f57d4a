//! The rings between several producers and consumers, sorted by owner.

use crate::{Consumer, Producer, ring};

/// The rings of a pipeline. Every ring has exactly one producer and one consumer.
pub struct Mesh<T> {
    /// By owner of the producer, in the order of places.
    pub producers: Vec<Vec<Producer<T>>>,
    /// By owner of the consumer; each with the number of its producer's owner.
    pub consumers: Vec<Vec<(usize, Consumer<T>)>>,
}

impl<T: Copy + Default> Mesh<T> {
    /// A ring of `slots` slots per place, a pair of owners numbered from 0: writer and reader.
    pub fn new(places: impl IntoIterator<Item = (usize, usize)>, slots: usize) -> Self {
        let mut mesh = Self { producers: Vec::new(), consumers: Vec::new() };
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
