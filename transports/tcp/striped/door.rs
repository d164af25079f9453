//! An acceptor's side of lost stripes: finds the link that a late connection belongs to.
//!
//! A connection that greets as a stripe beyond its link's first ones waits here, inside its greeting's own
//! future, as in `gather`: it counts as half open, makes room like any, and has as long as a greeting has. The
//! link takes it when its peer has said, over a stripe that lives, which greeting is meant (JOIN names the
//! nonce). So with a cluster key a connection has shown the key *and* is named by the very peer that the link
//! has; without one, whoever guesses the link and the number is still not taken, because of the nonce.
//!
//! What is refused at once: a link that is not here, another process, and a number that is used up, as that
//! of a stripe which was given up already. A link keeps [`WAITING_MAX`] at most; the oldest goes.

use std::cell::RefCell;
use std::collections::{HashMap, VecDeque};
use std::io;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use blockwire::transport::Violation;
use tokio::sync::oneshot;
use tokio::time::sleep;
use uuid::Uuid;

use crate::greeting::{GreetError, Nonce, Place};

/// Most connections that wait for one link. Its peer dials one at a time; others are strangers.
const WAITING_MAX: usize = 4;

/// The striped links of a listener that live.
#[derive(Debug)]
pub(crate) struct Doors<C> {
    links: Rc<RefCell<HashMap<Uuid, Shared<C>>>>,
}

/// A link's own. Nobody comes to the link any more once it is dropped.
#[derive(Debug)]
pub(crate) struct Door<C> {
    doors: Doors<C>,
    link: Uuid,
    waiting: Shared<C>,
}

/// A link's candidates, as the link and its listener have them.
type Shared<C> = Rc<RefCell<Waiting<C>>>;

/// What waits for a link.
#[derive(Debug)]
struct Waiting<C> {
    instance: Uuid,
    stripes: u16,
    /// Numbers below are used up.
    floor: usize,
    candidates: VecDeque<Candidate<C>>,
    waker: Option<Waker>,
}

#[derive(Debug)]
struct Candidate<C> {
    number: usize,
    nonce: Nonce,
    connection: C,
    /// Dropped when the connection waits no more.
    waits: oneshot::Sender<()>,
}

impl<C> Clone for Doors<C> {
    fn clone(&self) -> Self {
        Self { links: Rc::clone(&self.links) }
    }
}

impl<C> Doors<C> {
    /// No link.
    pub(crate) fn new() -> Self {
        Self { links: Rc::default() }
    }

    /// A door for a link of so many stripes with that process.
    ///
    /// # Errors
    /// There is a link of that name.
    pub(crate) fn open(
        &self,
        link: Uuid,
        instance: Uuid,
        stripes: u16,
    ) -> Result<Door<C>, Violation> {
        let mut links = self.links.borrow_mut();
        if links.contains_key(&link) {
            return Err(Violation::Greeting("a link that is there already"));
        }
        let (floor, candidates) = (stripes.into(), VecDeque::new());
        let waiting = Waiting { instance, stripes, floor, candidates, waker: None };
        let waiting = Rc::new(RefCell::new(waiting));
        links.insert(link, Rc::clone(&waiting));
        Ok(Door { doors: self.clone(), link, waiting })
    }

    /// Waits until the link takes a connection, at most for `timeout`.
    ///
    /// # Errors
    /// It does not belong to the link, or the link does not want it.
    ///
    /// # Cancel safety
    /// Dropping the future drops the connection, unless the link has it.
    pub(crate) async fn wait(
        &self,
        place: Place,
        instance: Uuid,
        nonce: Nonce,
        connection: C,
        timeout: Duration,
    ) -> Result<(), GreetError> {
        let found = self.links.borrow().get(&place.link).cloned();
        let waiting =
            found.ok_or(Violation::Greeting("a late stripe of a link that is not here"))?;
        let over = waiting.borrow_mut().add(place, instance, nonce, connection)?;
        let _leaves = Leaves { waiting: &waiting, nonce };
        tokio::select! {
            biased;
            _ = over => Ok(()),
            () = sleep(timeout) => {
                let what = "the link was not told of this stripe in time";
                Err(io::Error::new(io::ErrorKind::TimedOut, what).into())
            }
        }
    }
}

impl<C> Door<C> {
    /// Uses up the numbers below.
    pub(super) fn raise(&self, floor: usize) {
        let mut waiting = self.waiting.borrow_mut();
        waiting.floor = floor;
        waiting.candidates.retain(|candidate| candidate.number >= floor);
    }

    /// The connection that greeted with that number and nonce, when it is there.
    pub(super) fn poll_take(&self, cx: &mut Context<'_>, number: usize, nonce: &Nonce) -> Poll<C> {
        let mut waiting = self.waiting.borrow_mut();
        let named =
            |candidate: &Candidate<C>| candidate.number == number && candidate.nonce == *nonce;
        match waiting.candidates.iter().position(named) {
            Some(at) => {
                let candidate = waiting.candidates.remove(at).expect("it was found there");
                drop(candidate.waits);
                Poll::Ready(candidate.connection)
            }
            None => {
                waiting.waker = Some(cx.waker().clone());
                Poll::Pending
            }
        }
    }
}

impl<C> Drop for Door<C> {
    fn drop(&mut self) {
        self.doors.links.borrow_mut().remove(&self.link);
        self.waiting.borrow_mut().candidates.clear();
    }
}

impl<C> Waiting<C> {
    fn add(
        &mut self,
        place: Place,
        instance: Uuid,
        nonce: Nonce,
        connection: C,
    ) -> Result<oneshot::Receiver<()>, Violation> {
        if self.instance != instance {
            return Err(Violation::Greeting("a stripe of another process's link"));
        }
        if self.stripes != place.stripes {
            return Err(Violation::Greeting("the stripes disagree on how many there are"));
        }
        let number = usize::from(place.stripe);
        if number < self.floor {
            return Err(Violation::Greeting("a stripe that was given up already"));
        }
        if self.candidates.len() == WAITING_MAX {
            self.candidates.pop_front();
        }
        let (waits, over) = oneshot::channel();
        self.candidates.push_back(Candidate { number, nonce, connection, waits });
        self.waker.take().into_iter().for_each(Waker::wake);
        Ok(over)
    }
}

/// Takes a connection away when nobody waits for it any more.
struct Leaves<'a, C> {
    waiting: &'a Shared<C>,
    nonce: Nonce,
}

impl<C> Drop for Leaves<'_, C> {
    fn drop(&mut self) {
        self.waiting.borrow_mut().candidates.retain(|candidate| candidate.nonce != self.nonce);
    }
}
