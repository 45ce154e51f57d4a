//! What HTTP answers, and what it refuses.

use std::io::{ErrorKind, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, sync_channel};
use std::time::{Duration, Instant};

use crate::common::{SIMULATED, demo, fenxi, run};
use crate::control::{PATIENCE, Served};

#[test]
fn health_gives_its_reasons() {
    let mut served = Served::start(&["--speed", "real"]);
    served.wait_for("it is ready", |served| served.get("/readyz").0.contains("200"));
    assert_eq!(served.get("/livez"), ("HTTP/1.1 200 OK".to_owned(), "ok\n".to_owned()));
    let (status, page) = served.get("/readyz?verbose");
    assert_eq!(status, "HTTP/1.1 200 OK");
    assert_eq!(
        page,
        "[+] running: ready\n[+] threads: all 2 answer or have ended\n[+] devices: all 1 up\nok\n"
    );
}

#[test]
fn without_a_device_it_lives_and_is_not_ready() {
    let mut served = Served::start(&[
        "--speed",
        "20x",
        "--set",
        "accel.devices=[\"bad\"]",
        "--set",
        "device.bad.provider=simulated",
        "--set",
        "device.bad.faults=vanish=1",
    ]);
    served.wait_for("the device is down", |served| {
        let (status, page) = served.get("/readyz");
        status.contains("503") && page.contains("[-] devices: bad of analytics-0.0 is ")
    });
    assert_eq!(served.get("/livez").1, "ok\n");
    let up = served.scrape().sum("fenxi_device_up", "device=\"bad\"");
    assert_eq!(up, 0.0);
}

#[test]
fn what_is_not_served_is_refused_by_its_code() {
    let served = Served::start(&["--speed", "real"]);
    let status = |request: &str| {
        let answer = served.http(request);
        answer.lines().next().unwrap_or_default().to_owned()
    };
    let headers = "X: y\r\n".repeat(100);
    for (request, code) in [
        ("GET /nothing HTTP/1.1\r\nHost: x\r\n\r\n".to_owned(), "404"),
        ("GET /metrics/ HTTP/1.1\r\nHost: x\r\n\r\n".to_owned(), "404"),
        ("POST /metrics HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n\r\n{}".to_owned(), "405"),
        ("DELETE /readyz HTTP/1.1\r\nHost: x\r\n\r\n".to_owned(), "405"),
        (format!("GET /metrics HTTP/1.1\r\nHost: {}\r\n\r\n", "x".repeat(20_000)), "431"),
        (format!("GET /metrics HTTP/1.1\r\n{headers}\r\n"), "431"),
        ("metrics, please\r\n\r\n".to_owned(), "400"),
        ("\0\0\0\0\r\n\r\n".to_owned(), "400"),
    ] {
        let status = status(&request);
        let shown: String = request.chars().take(60).collect();
        assert!(status.starts_with(&format!("HTTP/1.1 {code} ")), "{shown:?}: {status}");
    }
    let refused = served.http("PUT /livez HTTP/1.1\r\nHost: x\r\n\r\n").to_lowercase();
    assert!(refused.contains("allow: get, head"), "{refused}");
    let head = served.http("HEAD /metrics HTTP/1.1\r\nHost: x\r\n\r\n");
    assert!(head.starts_with("HTTP/1.1 200 ") && head.ends_with("\r\n\r\n"), "{head}");
    assert_eq!(served.get("/livez").1, "ok\n");
}

/// The slow ones lose their connection, in time and by its code; the replay and others do not
/// notice.
#[test]
fn the_slow_are_turned_away() {
    let served = Served::start(&["--speed", "real"]);
    let began = Instant::now();
    let mut streams = ["", "GET /metr", "GET /metrics HTTP/1.1\r\nHost: x\r\nX: "].map(|sent| {
        let mut stream = UnixStream::connect(served.http_path()).unwrap();
        stream.write_all(sent.as_bytes()).unwrap();
        stream
    });
    assert_eq!(served.get("/livez").1, "ok\n");
    for stream in &mut streams {
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        assert!(answer.starts_with("HTTP/1.1 408 "), "{answer}");
    }
    assert!(began.elapsed() < PATIENCE);
}

/// Half a request, from this many clients, which come again as often as they are turned away.
fn slow_clients<'scope>(
    scope: &'scope std::thread::Scope<'scope, '_>,
    path: &'scope Path,
    is_over: &'scope AtomicBool,
    clients: usize,
) -> Receiver<()> {
    let (is_there, there) = sync_channel(clients);
    for _ in 0..clients {
        let is_there = is_there.clone();
        scope.spawn(move || {
            while !is_over.load(Ordering::Relaxed) {
                let mut stream = UnixStream::connect(path).unwrap();
                let _ = stream.write_all(b"GET /metrics HTTP/1.1\r\nHost: x\r\nX: ");
                let _ = is_there.try_send(());
                stream.set_read_timeout(Some(Duration::from_millis(100))).unwrap();
                while !is_over.load(Ordering::Relaxed) {
                    match stream.read(&mut [0; 64]) {
                        Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                        _ => break,
                    }
                }
            }
        });
    }
    there
}

/// 50 clients that never finish their request, which come again as soon as they are turned away;
/// then as many more that hold on to their connections: each scrape is answered.
#[test]
fn slow_clients_do_not_keep_others_out() {
    let served = Served::start(&["--speed", "real"]);
    let path = served.http_path();
    let is_over = AtomicBool::new(false);
    let answers = |path: &str| -> Vec<String> {
        let status = |_| served.get(path).0;
        (0..30).map(status).collect()
    };
    std::thread::scope(|scope| {
        let there = slow_clients(scope, &path, &is_over, 50);
        (0..50).for_each(|_| there.recv_timeout(PATIENCE).unwrap());
        let few = ["/metrics", "/livez"].map(answers);
        let mut held: Vec<UnixStream> =
            (0..200).map(|_| UnixStream::connect(&path).unwrap()).collect();
        let many = ["/metrics", "/livez"].map(answers);
        is_over.store(true, Ordering::Relaxed);
        for status in few.iter().chain(&many).flatten() {
            assert_eq!(status, "HTTP/1.1 200 OK");
        }
        // One that was there before is told why it had to go.
        let mut answer = String::new();
        let _ = held[0].read_to_string(&mut answer);
        assert!(answer.starts_with("HTTP/1.1 503 "), "{answer}");
    });
}

#[test]
fn a_thousand_connections_are_turned_away_and_leave_room_when_they_go() {
    let mut served = Served::start(&["--speed", "real"]);
    let streams: Vec<UnixStream> =
        (0..1000).map(|_| UnixStream::connect(served.http_path()).unwrap()).collect();
    let turned_away = |stream: &mut UnixStream| {
        stream.set_read_timeout(Some(Duration::from_millis(1))).unwrap();
        let mut answer = [0; 12];
        stream.read_exact(&mut answer).is_ok() && answer == *b"HTTP/1.1 503"
    };
    let mut streams = streams;
    // The first ones had to make room for those that came; the program may need a moment to say so.
    let began = Instant::now();
    while !turned_away(&mut streams[0]) {
        assert!(began.elapsed() < PATIENCE);
    }
    drop(streams);
    served.wait_for("there is room again", |served| {
        served.http("GET /livez HTTP/1.1\r\nHost: x\r\n\r\n").ends_with("\r\n\r\nok\n")
    });
    served.ctl(&["status"]).expect_code(0);
}

#[test]
fn loopback_is_served_over_tcp() {
    let address = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let served = Served::start(&["--speed", "real"]);
    // A second one, on a port that was free a moment ago.
    let mut command = fenxi(["replay", "--control", "--speed", "real"]);
    command.arg(demo()).args(SIMULATED);
    command.args(["--set", &format!("control.http={address}"), "--set", "control.socket="]);
    let mut child = command.spawn().unwrap();
    let began = Instant::now();
    let mut stream = loop {
        match TcpStream::connect(address) {
            Ok(stream) => break stream,
            Err(error) => assert!(began.elapsed() < PATIENCE, "{error}"),
        }
    };
    stream.write_all(b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n").unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    child.kill().unwrap();
    child.wait().unwrap();
    assert!(
        answer.contains("text/plain; version=0.0.4") && answer.contains("fenxi_balance"),
        "{answer}"
    );
    drop(served);
}

#[test]
fn other_addresses_are_refused_unless_allowed() {
    for (address, exposed, code) in [
        ("0.0.0.0:9469", "false", 78),
        ("[::]:9469", "false", 78),
        ("192.0.2.1:9469", "true", 0),
        ("127.0.0.1:9469", "false", 0),
        ("[::1]:9469", "false", 0),
        ("localhost", "false", 78),
        ("unix:", "false", 78),
    ] {
        let mut command = fenxi(["check", "--config-only"]);
        command.args(["--set", &format!("control.http=\"{address}\"")]);
        command.args(["--set", &format!("control.http_exposed={exposed}")]);
        let finished = run(command);
        assert_eq!(finished.code, code, "{address}: {}", finished.stderr);
        assert_eq!(finished.stderr.contains("control.http"), code != 0, "{}", finished.stderr);
    }
}
