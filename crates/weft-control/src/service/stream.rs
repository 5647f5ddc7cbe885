//! A view as a stream of messages.

use std::time::Duration;
use tokio::{
    sync::{mpsc, watch},
    time::timeout,
};
use tokio_stream::wrappers::ReceiverStream;
use tonic::Status;

/// A reader that takes nothing for this long is cut off. It comes back and gets the latest state first.
const STUCK: Duration = Duration::from_secs(8);
/// Messages handed to the connection ahead of what it has sent.
const AHEAD: usize = 2;

pub type Messages<M> = ReceiverStream<Result<M, Status>>;

/// Sends what `step` makes of the view, now and after each change. What changes faster than the reader reads is
/// skipped. An error ends the stream.
pub fn of_view<V, M>(
    mut view: watch::Receiver<V>,
    mut step: impl FnMut(&V) -> Result<Vec<M>, Status> + Send + 'static,
) -> Messages<M>
where
    V: Clone + Send + Sync + 'static,
    M: Send + 'static,
{
    let (out, messages) = mpsc::channel(AHEAD + 1);
    tokio::spawn(async move {
        // Room for the last word, also when the reader is stuck.
        let Ok(last) = out.clone().reserve_owned().await else { return };
        let ended = loop {
            let state = view.borrow_and_update().clone();
            match step(&state) {
                Err(status) => break status,
                Ok(messages) => {
                    let mut stuck = false;
                    for message in messages {
                        match timeout(STUCK, out.send(Ok(message))).await {
                            Ok(Ok(())) => {}
                            Ok(Err(_)) => return,
                            Err(_) => stuck = true,
                        }
                        if stuck {
                            break;
                        }
                    }
                    if stuck {
                        break Status::unavailable("the stream was not read; open it again");
                    }
                }
            }
            tokio::select! {
                () = out.closed() => return,
                changed = view.changed() => if changed.is_err() {
                    break Status::unavailable("the controller is shutting down");
                },
            }
        };
        last.send(Err(ended));
    });
    ReceiverStream::new(messages)
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio_stream::StreamExt;

    #[tokio::test(start_paused = true)]
    async fn a_stuck_reader_is_cut_off_with_a_status_that_invites_it_back() {
        let (view, receiver) = watch::channel(0);
        let mut messages = of_view(receiver, |n: &i32| Ok(vec![*n]));
        for n in 1..10 {
            view.send_replace(n);
            tokio::time::sleep(Duration::from_secs(4)).await;
        }
        let mut got = Vec::new();
        while let Some(message) = messages.next().await {
            got.push(message.map_err(|s| s.code()));
        }
        assert_eq!(got.len(), AHEAD + 1, "{got:?}");
        assert_eq!(got.last(), Some(&Err(tonic::Code::Unavailable)));
    }

    #[tokio::test]
    async fn a_reader_that_leaves_ends_the_task() {
        let (view, receiver) = watch::channel(0);
        drop(of_view(receiver, |n: &i32| Ok(vec![*n])));
        view.closed().await;
    }
}
