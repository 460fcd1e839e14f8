//! Asks the dataplane, and asks again when it goes away: a dataplane that was started anew knows nothing of what it was asked before.

use std::io::ErrorKind;
use std::path::Path;
use std::time::Duration;

use keelson_dataplane::drain::client::{AskError, ask};
use keelson_dataplane::drain::protocol::Answer;
use tokio::sync::watch;
use tracing::{debug, warn};

use super::Seen;

/// Pause before it is asked again: a dataplane is back within some hundred milliseconds.
const AGAIN: Duration = Duration::from_millis(50);

/// Tells in `seen` what the dataplane says of a pod, until dropped. `now`: the clock of the wait, nanoseconds.
pub async fn follow(socket: &Path, uid: &str, seen: watch::Sender<Seen>, now: impl Fn() -> i64) {
    let mut news = News { seen, was_endpoint: false };
    let mut complained = false;
    loop {
        let failure = match asked(socket, uid, &mut news, &now).await {
            // There is nothing to add to a last answer.
            Ok(None) => return std::future::pending().await,
            Ok(Some(refusal)) => refusal,
            Err(AskError::Io(error)) if error.kind() == ErrorKind::NotFound => {
                news.tell(Seen::Absent);
                tokio::time::sleep(AGAIN).await;
                continue;
            }
            Err(error) => error.to_string(),
        };
        if !std::mem::replace(&mut complained, true) {
            warn!(uid, "the dataplane does not say whether it has let go of the pod; asking again: {failure}");
        }
        news.tell(Seen::Away);
        tokio::time::sleep(AGAIN).await;
    }
}

/// One question to its last answer; a refusal in its words.
async fn asked(socket: &Path, uid: &str, news: &mut News, now: impl Fn() -> i64) -> Result<Option<String>, AskError> {
    let mut asked = ask(socket, uid).await?;
    loop {
        match asked.next().await? {
            Answer::Waiting { on, .. } => {
                debug!(uid, "the dataplane waits for {on}");
                news.was_endpoint = true;
                news.tell(Seen::Waiting);
            }
            // An endpoint that is gone by now has been let go of.
            Answer::Unknown if !news.was_endpoint => {
                news.tell(Seen::Unknown);
                return Ok(None);
            }
            Answer::Unknown | Answer::Done => {
                news.tell(Seen::Agreed(now()));
                return Ok(None);
            }
            Answer::Refused { why } => return Ok(Some(why)),
        }
    }
}

struct News {
    seen: watch::Sender<Seen>,
    was_endpoint: bool,
}

impl News {
    fn tell(&self, now: Seen) {
        self.seen.send_if_modified(|last| std::mem::replace(last, now) != now);
    }
}
