//! A listener's side of a new striped link: finds the connections that belong together.
//!
//! Connections come one by one and are greeted side by side. Each that names itself one of several waits
//! here, inside its greeting's own future, so that it counts as half open for as long as it waits, and
//! makes room like any. The one that comes last takes all of them. A set has as long as a greeting has, from
//! its first connection on.
//!
//! Whoever does not fit into a set is refused alone; the set goes on waiting for the right one.

use std::cell::RefCell;
use std::collections::{BTreeMap, HashMap};
use std::io;
use std::rc::Rc;
use std::time::Duration;

use blockwire::transport::Violation;
use tokio::sync::oneshot;
use tokio::time::{Instant, sleep_until};
use uuid::Uuid;

use crate::greeting::{GreetError, Place};

/// Connections of type `C` that wait for others of their link.
#[derive(Debug)]
pub(crate) struct Gather<C> {
    sets: Rc<RefCell<Sets<C>>>,
}

#[derive(Debug)]
struct Sets<C> {
    by_link: HashMap<Uuid, Set<C>>,
    next: u64,
}

#[derive(Debug)]
struct Set<C> {
    /// Tells it from a later set of the same link.
    number: u64,
    stripes: u16,
    instance: Uuid,
    deadline: Instant,
    members: BTreeMap<u16, Member<C>>,
}

#[derive(Debug)]
struct Member<C> {
    connection: C,
    /// Dropped when the set is over.
    _waits: oneshot::Sender<()>,
}

impl<C> Clone for Gather<C> {
    fn clone(&self) -> Self {
        Self { sets: Rc::clone(&self.sets) }
    }
}

impl<C> Gather<C> {
    /// Nobody waits.
    pub(crate) fn new() -> Self {
        let sets = Sets { by_link: HashMap::new(), next: 0 };
        Self { sets: Rc::new(RefCell::new(sets)) }
    }

    /// Joins a connection of `instance` to the others of its link, and waits for them for at most
    /// `timeout`, counted from the first. All of them, in order, to the last that came; none to the others.
    ///
    /// # Errors
    /// It does not fit into its set, or the set did not become whole.
    ///
    /// # Cancel safety
    /// Dropping the future takes the connection out of its set.
    pub(crate) async fn join(
        &self,
        place: Place,
        instance: Uuid,
        connection: C,
        timeout: Duration,
    ) -> Result<Option<Vec<C>>, GreetError> {
        let joined = self.sets.borrow_mut().add(place, instance, connection, timeout)?;
        let (number, deadline, over) = match joined {
            Joined::Whole(connections) => return Ok(Some(connections)),
            Joined::Waits(number, deadline, over) => (number, deadline, over),
        };
        let _leaves = Leaves { gather: self, place, number };
        tokio::select! {
            biased;
            _ = over => Ok(None),
            () = sleep_until(deadline) => {
                let came = self.sets.borrow_mut().take(place.link, number).map_or(0, |set| set.len());
                let what = format!("{came} of the link's {} stripes came in time", place.stripes);
                Err(io::Error::new(io::ErrorKind::TimedOut, what).into())
            }
        }
    }
}

/// What became of a connection that joined.
enum Joined<C> {
    Whole(Vec<C>),
    Waits(u64, Instant, oneshot::Receiver<()>),
}

impl<C> Sets<C> {
    fn add(
        &mut self,
        place: Place,
        instance: Uuid,
        connection: C,
        timeout: Duration,
    ) -> Result<Joined<C>, Violation> {
        let Place { link, stripe, stripes } = place;
        let number = self.next;
        let set = self.by_link.entry(link).or_insert_with(|| {
            let deadline = Instant::now() + timeout;
            Set { number, stripes, instance, deadline, members: BTreeMap::new() }
        });
        if set.instance != instance {
            return Err(Violation::Greeting("a stripe of another process's link"));
        }
        if set.stripes != stripes {
            return Err(Violation::Greeting("the stripes disagree on how many there are"));
        }
        if set.members.contains_key(&stripe) {
            return Err(Violation::Greeting("a stripe that is there already"));
        }
        self.next += 1;
        let (waits, over) = oneshot::channel();
        set.members.insert(stripe, Member { connection, _waits: waits });
        let (number, deadline) = (set.number, set.deadline);
        if set.members.len() < stripes.into() {
            return Ok(Joined::Waits(number, deadline, over));
        }
        Ok(Joined::Whole(self.take(link, number).unwrap_or_default()))
    }

    /// Ends a set: the connections of it.
    fn take(&mut self, link: Uuid, number: u64) -> Option<Vec<C>> {
        self.by_link.get(&link).filter(|set| set.number == number)?;
        let set = self.by_link.remove(&link)?;
        Some(set.members.into_values().map(|member| member.connection).collect())
    }

    /// Takes one connection out.
    fn leave(&mut self, place: Place, number: u64) {
        if let Some(set) = self.by_link.get_mut(&place.link).filter(|set| set.number == number) {
            set.members.remove(&place.stripe);
            if set.members.is_empty() {
                self.by_link.remove(&place.link);
            }
        }
    }
}

/// Takes a connection out of its set when nobody waits for it any more.
struct Leaves<'a, C> {
    gather: &'a Gather<C>,
    place: Place,
    number: u64,
}

impl<C> Drop for Leaves<'_, C> {
    fn drop(&mut self) {
        self.gather.sets.borrow_mut().leave(self.place, self.number);
    }
}
