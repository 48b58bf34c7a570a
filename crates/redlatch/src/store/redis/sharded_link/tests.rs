use std::sync::Mutex;

use super::*;

type Told = Arc<Mutex<Vec<String>>>;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_that_ends_each_connection_is_connected_to_with_pauses() {
    use std::sync::atomic::{AtomicU32, Ordering};
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("redis://{}", listener.local_addr().unwrap());
    let connections = Arc::new(AtomicU32::new(0));
    let count = connections.clone();
    let accepting = tokio::spawn(async move {
        while listener.accept().await.is_ok() {
            count.fetch_add(1, Ordering::SeqCst);
        }
    });
    let crate::config::url::StoreUrl::Redis(server) = crate::config::url::StoreUrl::parse(&url).unwrap()
    else {
        panic!("{url}")
    };
    let config = crate::client::Client::builder().url(&url).config().clone();
    let dial = Arc::new(Dial::new(server, &config, &Handle::current()).unwrap());
    let _ear = ShardedLink::open(dial, &Handle::current(), Box::new(|_| {}));
    let began = std::time::Instant::now();
    tokio::time::sleep(Duration::from_secs(1)).await;
    let (connections, seconds) = (connections.load(Ordering::SeqCst), began.elapsed().as_secs_f64());
    assert!(f64::from(connections) <= 15.0 * seconds, "{connections} connections in {seconds} s");
    accepting.abort();
}

fn listening() -> (Talk, Told, Tell) {
    let told = Told::default();
    let tell = {
        let told = told.clone();
        Box::new(move |heard| {
            let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
            told.lock().unwrap().push(match heard {
                Heard::Up | Heard::Down => "connection".to_owned(),
                Heard::Confirmed { way, channel, .. } => format!("{way:?} {}", text(&channel)),
                Heard::Refused { way, channel, code, detail, .. } => {
                    format!("{way:?} {} {code} {detail}", text(&channel))
                }
                Heard::Ended(channel) => format!("ended {}", text(&channel)),
                Heard::Message { channel, payload } => format!("{} {payload}", text(&channel)),
            });
        })
    };
    (Talk::default(), told, tell)
}

fn array(items: &[&str]) -> String {
    let items: String = items.iter().map(|item| format!("${}\r\n{item}\r\n", item.len())).collect();
    format!("*{}\r\n{items}", items.matches('$').count())
}

fn hear(talk: &mut Talk, tell: &Tell, told: &Told, text: &str) -> Vec<String> {
    talk.input.extend_from_slice(text.as_bytes());
    talk.hear(tell).unwrap();
    std::mem::take(&mut told.lock().unwrap())
}

fn order(listen: bool, way: Way, channel: &str) -> Asked {
    Asked::Channel(Order { listen, way, channel: channel.as_bytes().into(), number: 0 })
}

#[test]
fn a_subscription_that_the_server_ends_is_not_the_answer_to_a_request() {
    let (mut talk, told, tell) = listening();
    talk.ask(order(true, Way::Sharded, "a"));
    talk.ask(order(true, Way::Sharded, "b"));
    talk.ask(order(false, Way::Sharded, "a"));
    assert!(talk.output.starts_with(b"*2\r\n$10\r\nSSUBSCRIBE\r\n$1\r\na\r\n"));
    let text = array(&["ssubscribe", "a"]) + &array(&["sunsubscribe", "b"]) + "-MOVED 7 h:1\r\n";
    assert_eq!(hear(&mut talk, &tell, &told, &text), ["Sharded a", "ended b", "Sharded b MOVED 7 h:1"]);
    assert_eq!(hear(&mut talk, &tell, &told, &array(&["sunsubscribe", "a"])), [""; 0]);
    assert_eq!(hear(&mut talk, &tell, &told, &array(&["sunsubscribe", "a"])), ["ended a"]);
}

#[test]
fn an_answer_says_which_request_it_is_for() {
    let (mut talk, ..) = listening();
    let (told, heard) = std::sync::mpsc::channel();
    let tell: Tell = Box::new({
        let told = Mutex::new(told);
        move |heard| {
            if let Heard::Confirmed { number, .. } | Heard::Refused { number, .. } = heard {
                told.lock().unwrap().send(number).unwrap();
            }
        }
    });
    for (listen, number) in [(true, 1), (false, 1), (true, 2), (true, 3)] {
        let (way, channel) = (Way::Sharded, b"a"[..].into());
        talk.ask(Asked::Channel(Order { listen, way, channel, number }));
    }
    let (on, off) = (array(&["ssubscribe", "a"]), array(&["sunsubscribe", "a"]));
    talk.input.extend_from_slice(format!("{on}{off}{on}-MOVED 7 h:1\r\n").as_bytes());
    talk.hear(&tell).unwrap();
    assert_eq!(heard.try_iter().collect::<Vec<_>>(), [1, 2, 3]);
}

#[test]
fn a_message_that_comes_both_ways_together_counts_once() {
    let (mut talk, told, tell) = listening();
    let (plain, sharded) = (array(&["message", "c", "0"]), array(&["smessage", "c", "0"]));
    assert_eq!(hear(&mut talk, &tell, &told, &format!("{plain}{sharded}")), ["c 0"]);
    // Two of each: two messages that were sent both ways.
    assert_eq!(hear(&mut talk, &tell, &told, &format!("{plain}{sharded}{plain}{sharded}")), ["c 0", "c 0"]);
    // Of two sharded messages none is the other's twin, and one that comes later may be news.
    assert_eq!(hear(&mut talk, &tell, &told, &format!("{sharded}{sharded}")), ["c 0", "c 0"]);
    assert_eq!(hear(&mut talk, &tell, &told, &plain), ["c 0"]);
    assert_eq!(hear(&mut talk, &tell, &told, &sharded), ["c 0"]);
    let other = array(&["smessage", "d", "0"]);
    assert_eq!(hear(&mut talk, &tell, &told, &format!("{plain}{other}")), ["c 0", "d 0"]);
}

#[test]
fn a_refused_sign_of_life_is_one() {
    let (mut talk, told, tell) = listening();
    talk.ask(Asked::Ping);
    talk.ask(order(true, Way::Plain, "a"));
    let text = "-NOPERM no rights\r\n".to_owned() + &array(&["subscribe", "a"]);
    assert_eq!(hear(&mut talk, &tell, &told, &text), ["Plain a"]);
    assert!(talk.due.is_empty(), "it would end the connection");
}

#[test]
fn frames_may_come_in_pieces_and_nonsense_ends_the_connection() {
    let (mut talk, told, tell) = listening();
    let text = array(&["message", "c", "-5"]);
    let (last, rest) = text.as_bytes().split_last().unwrap();
    for byte in rest {
        talk.input.push(*byte);
        talk.hear(&tell).unwrap();
        assert!(told.lock().unwrap().is_empty());
    }
    talk.input.push(*last);
    talk.hear(&tell).unwrap();
    assert_eq!(*told.lock().unwrap(), ["c -5"]);
    for nonsense in ["%1\r\n", "*1\r\n*1\r\n", "$-7\r\n", "+PONG\r\n", "*99999\r\n", ":1\r\n"] {
        talk.input = nonsense.as_bytes().to_vec();
        assert!(talk.hear(&tell).is_err(), "{nonsense:?}");
    }
}

proptest::proptest! {
    #[test]
    fn any_bytes_are_read_or_refused(bytes: Vec<u8>) {
        let (mut talk, _, tell) = listening();
        talk.input = bytes;
        let _ = talk.hear(&tell);
    }
}
