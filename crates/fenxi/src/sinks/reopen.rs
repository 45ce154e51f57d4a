//! Files that are reopened by name, after the old ones were moved away.

use std::sync::{Arc, Mutex, PoisonError};

use crossbeam_channel::{Receiver, Sender, TrySendError, bounded};

/// Takes the result of reopening; Err: why the old file goes on.
pub type Answer = Box<dyn FnOnce(Result<(), String>) + Send>;

/// Commands to reopen a file that may wait: a reload, a signal and several `fenxi ctl reopen` at
/// the same time. One look at the file answers all of them.
const COMMANDS: usize = 16;

/// The end of those who ask for a file to be opened again.
#[derive(Clone)]
pub struct Reopener(Sender<Answer>);

impl Reopener {
    /// Both ends; the thread that writes the file receives the commands.
    pub fn new() -> (Reopener, Receiver<Answer>) {
        let (commands, received) = bounded(COMMANDS);
        (Reopener(commands), received)
    }

    /// What was taken so far is written to the old file, everything later to the one that has its
    /// name from now on, which is created where it is not there. `answer` is called once that is
    /// done.
    pub fn reopen(&self, answer: Answer) {
        if let Err(TrySendError::Full(answer) | TrySendError::Disconnected(answer)) =
            self.0.try_send(answer)
        {
            answer(Err(format!(
                "{COMMANDS} requests to reopen the file are already waiting: the reader of the \
                 records is too slow"
            )));
        }
    }
}

/// Has all files opened again; `answer` is called once the last is done, with the first refusal if
/// there is one.
pub fn reopen_all(reopeners: &[Reopener], answer: Answer) {
    if reopeners.is_empty() {
        return answer(Err("this run does not write records".to_owned()));
    }
    // How many files are left, the first refusal, and who wants to know.
    let gathered = Arc::new(Mutex::new((reopeners.len(), Ok(()), Some(answer))));
    for reopener in reopeners {
        let gathered = gathered.clone();
        reopener.reopen(Box::new(move |opened| {
            let mut gathered = gathered.lock().unwrap_or_else(PoisonError::into_inner);
            let (left, result, answer) = &mut *gathered;
            *left -= 1;
            if result.is_ok() {
                *result = opened;
            }
            if *left == 0
                && let Some(answer) = answer.take()
            {
                answer(result.clone());
            }
        }));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_answer_comes_when_the_last_file_is_open_and_names_a_refusal() {
        let (first, commands) = Reopener::new();
        let (second, others) = Reopener::new();
        let (said, heard) = bounded(1);
        let answer = Box::new(move |result| said.send(result).unwrap());
        reopen_all(&[first, second], answer);
        commands.recv().unwrap()(Err("no room".to_owned()));
        assert!(heard.is_empty());
        others.recv().unwrap()(Ok(()));
        assert_eq!(heard.recv().unwrap(), Err("no room".to_owned()));
    }
}
