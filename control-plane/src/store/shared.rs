//! One answer for all who ask at the same time.

use std::future::Future;
use std::sync::atomic::{AtomicU64, Ordering};

use tokio::sync::Mutex;

/// A question whose answer serves everybody who asked before it was put: at most one is under way, however many ask, and nobody gets an
/// answer from before he asked.
#[derive(Debug)]
pub struct Shared<T> {
    arrivals: AtomicU64,
    /// The last answer, and how many had arrived when its question was put.
    last: Mutex<Option<(u64, T)>>,
}

impl<T> Default for Shared<T> {
    fn default() -> Self {
        Self { arrivals: AtomicU64::new(0), last: Mutex::new(None) }
    }
}

impl<T: Clone> Shared<T> {
    /// The answer to `question`, or to the same one that somebody else put since this call.
    pub async fn ask(&self, question: impl Future<Output = T>) -> T {
        let place = self.arrivals.fetch_add(1, Ordering::AcqRel);
        // Held while the question is under way: who comes meanwhile waits for the next one.
        let mut last = self.last.lock().await;
        if let Some((covered, answer)) = last.as_ref()
            && place < *covered
        {
            return answer.clone();
        }
        let covered = self.arrivals.load(Ordering::Acquire);
        let answer = question.await;
        *last = Some((covered, answer.clone()));
        answer
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn many_share_one_answer_and_none_is_older_than_the_question() {
        let shared = Shared::default();
        let (questions, world) = (AtomicU64::new(0), AtomicU64::new(0));
        let ask = |after: u64| {
            let (shared, questions, world) = (&shared, &questions, &world);
            async move {
                tokio::time::sleep(Duration::from_millis(after)).await;
                let asked = world.fetch_add(1, Ordering::Relaxed);
                let answer = shared.ask(async {
                    questions.fetch_add(1, Ordering::Relaxed);
                    tokio::time::sleep(Duration::from_millis(5)).await;
                    let answer = world.load(Ordering::Relaxed);
                    tokio::time::sleep(Duration::from_millis(5)).await;
                    answer
                });
                let answer = answer.await;
                assert!(answer > asked, "asked when it was {asked}, told {answer}");
            }
        };
        futures::future::join_all((0..100).map(|i| ask(i % 20))).await;
        let put = questions.load(Ordering::Relaxed);
        assert!((2..=4).contains(&put), "{put} questions for 100 in 20 ms, of 10 ms each");
    }

    #[tokio::test(start_paused = true)]
    async fn who_gives_up_leaves_the_question_to_the_next() {
        let shared = Shared::default();
        let never = tokio::time::timeout(Duration::from_secs(1), shared.ask(std::future::pending::<u64>()));
        let (gone, answer) = tokio::join!(never, shared.ask(async { 7 }));
        assert!(gone.is_err());
        assert_eq!(answer, 7);
    }
}
