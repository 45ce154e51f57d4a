//! Limits the connections of a socket, so that slow or many clients cannot keep others out.
//!
//! A socket has a number of places. When all are taken, a new connection gets the place of one that
//! has not sent a whole request, or else of one that does not take its answer: the oldest one of
//! the peer that holds most places. So a scrape that sends its request at once is answered, unless
//! as many others as there are places connect in between.

use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::Notify;

/// The other end. All clients on loopback share an address; all processes of a user are one peer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Peer {
    Address(IpAddr),
    /// A process of this user, by the kernel's credentials.
    User(u32),
    /// The kernel has no credentials.
    Unknown,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stage {
    /// Its request has not arrived completely.
    Asking,
    /// Its answer is being made.
    Working,
    /// Its answer is being sent.
    Taking,
}

/// The places of a socket; clones share them.
#[derive(Clone)]
pub struct Room {
    places: usize,
    /// Oldest first.
    taken: Arc<Mutex<Vec<Arc<Seat>>>>,
}

struct Seat {
    peer: Peer,
    stage: Mutex<Stage>,
    /// Notified once the place belongs to another connection.
    leave: Notify,
}

/// A connection's place; dropping it frees the place.
pub struct Place {
    room: Room,
    seat: Arc<Seat>,
}

impl Room {
    pub fn new(places: usize) -> Room {
        Room { places, taken: Arc::default() }
    }

    /// A place for a new connection; `None` if all are taken and none can be taken away.
    pub fn enter(&self, peer: Peer) -> Option<Place> {
        let mut taken = lock(&self.taken);
        if taken.len() >= self.places {
            let leaving = to_leave(&taken)?;
            taken.remove(leaving).leave.notify_one();
        }
        let seat = Arc::new(Seat { peer, stage: Mutex::new(Stage::Asking), leave: Notify::new() });
        taken.push(seat.clone());
        let room = self.clone();
        Some(Place { room, seat })
    }
}

/// The connection that loses its place: the oldest of the peer that holds most places, asking ones
/// before taking ones.
fn to_leave(taken: &[Arc<Seat>]) -> Option<usize> {
    let at = |stage| {
        let is_at = move |seat: &Arc<Seat>| *lock(&seat.stage) == stage;
        let held = move |peer| taken.iter().filter(|seat| seat.peer == peer).count();
        let seats = taken.iter().enumerate();
        let there = seats.filter(move |(_, seat)| is_at(seat));
        // `max_by_key` returns the last of equal ones, so the order is reversed.
        there.rev().max_by_key(move |(_, seat)| held(seat.peer))
    };
    let found = at(Stage::Asking).or_else(|| at(Stage::Taking))?;
    Some(found.0)
}

impl Place {
    pub fn set(&self, stage: Stage) {
        *lock(&self.seat.stage) = stage;
    }

    pub fn stage(&self) -> Stage {
        *lock(&self.seat.stage)
    }

    /// Waits until the place belongs to another connection.
    pub async fn taken_away(&self) {
        self.seat.leave.notified().await;
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut taken = lock(&self.room.taken);
        taken.retain(|seat| !Arc::ptr_eq(seat, &self.seat));
    }
}

fn lock<T>(shared: &Mutex<T>) -> MutexGuard<'_, T> {
    // The data is consistent after every statement, so a panic elsewhere does not matter.
    shared.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    const ROOT: Peer = Peer::User(0);
    const OTHER: Peer = Peer::User(1000);

    /// Whether the place was given to another connection.
    fn is_gone(place: &Place) -> bool {
        let taken = lock(&place.room.taken);
        !taken.iter().any(|seat| Arc::ptr_eq(seat, &place.seat))
    }

    fn full(peers: &[Peer]) -> (Room, Vec<Place>) {
        let room = Room::new(peers.len());
        let places = peers.iter().map(|peer| room.enter(*peer).unwrap());
        let places = places.collect();
        (room, places)
    }

    fn gone(places: &[Place]) -> Vec<usize> {
        let numbered = places.iter().enumerate();
        let gone = numbered.filter(|(_, place)| is_gone(place));
        gone.map(|(number, _)| number).collect()
    }

    #[test]
    fn whoever_leaves_makes_room() {
        let (room, mut places) = full(&[ROOT, ROOT]);
        places.iter().for_each(|place| place.set(Stage::Working));
        assert!(room.enter(ROOT).is_none(), "answers are being made");
        places.pop();
        assert!(room.enter(ROOT).is_some());
    }

    #[test]
    fn the_oldest_that_asks_has_to_go_before_one_that_takes_its_answer() {
        let (room, places) = full(&[ROOT; 4]);
        places[0].set(Stage::Taking);
        places[1].set(Stage::Working);
        let _newcomers = [2, 3].map(|next| {
            let newcomer = room.enter(ROOT).unwrap();
            newcomer.set(Stage::Working);
            assert_eq!(gone(&places).last(), Some(&next));
            newcomer
        });
        let last = room.enter(ROOT).unwrap();
        last.set(Stage::Working);
        assert_eq!(gone(&places), [0, 2, 3]);
        assert!(room.enter(ROOT).is_none());
        // A connection that ends late does not take the place of another with it.
        drop(places);
        assert!(!is_gone(&last));
    }

    #[test]
    fn of_several_peers_the_one_with_most_places_loses_one() {
        let (room, places) = full(&[OTHER, ROOT, ROOT, OTHER, ROOT]);
        let newcomer = room.enter(OTHER).unwrap();
        assert_eq!(gone(&places), [1]);
        drop(newcomer);
    }

    #[tokio::test]
    async fn a_connection_hears_of_it() {
        let (room, places) = full(&[ROOT]);
        let _newcomer = room.enter(OTHER);
        places[0].taken_away().await;
    }
}
