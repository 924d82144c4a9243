use super::*;

const MACHINE: Machine = Machine {
    cpus: 4,
    memory_bytes: 8 << 30,
};

fn layer(pairs: &[(&'static str, &str)], source: Source) -> Layer {
    pairs
        .iter()
        .map(|(k, v)| (*k, (v.to_string(), source.clone())))
        .collect()
}

fn flags(pairs: &[(&'static str, &str)]) -> Layer {
    layer(pairs, Source::Flag("--x".into()))
}

fn resolve(pairs: &[(&'static str, &str)]) -> Result<Settings, SettingsError> {
    Settings::resolve(&[flags(pairs)], MACHINE)
}

#[test]
fn nothing_set_is_a_complete_node() {
    let s = resolve(&[]).unwrap();
    assert_eq!(s.data_dir, PathBuf::from("./data"));
    assert_eq!(s.kafka_addr.to_string(), "127.0.0.1:9092");
    assert_eq!(s.advertise, ("127.0.0.1".to_string(), 9092));
    assert_eq!((s.shards, s.memory_bytes), (4, 4 << 30));
    assert!(s.auto_create_topics && !s.overprovisioned && s.admin_addr.is_none());
}

#[test]
fn later_layers_win_and_sources_are_told() {
    let file = layer(
        &[("shards", "1"), ("memory", "1GiB"), ("rack", "r1")],
        Source::File("t.toml".into()),
    );
    let environment = from_environment(
        [("TAILRACE_SHARDS", "2"), ("TAILRACE_MEMORY", "2g")]
            .map(|(k, v)| (k.into(), v.into()))
            .into_iter(),
    )
    .unwrap();
    let s = Settings::resolve(&[file, environment, flags(&[("shards", "3")])], MACHINE).unwrap();
    assert_eq!((s.shards, s.memory_bytes), (3, 2 << 30));
    assert_eq!(s.rack.as_deref(), Some("r1"));
    let shown = s.show();
    let line = |name: &str| {
        let all: Vec<&str> = shown.lines().filter(|l| l.starts_with(name)).collect();
        assert_eq!(all.len(), 1, "{name} in {shown}");
        all[0].split_whitespace().collect::<Vec<_>>().join(" ")
    };
    assert_eq!(line("shards ="), "shards = 3 # flag --x");
    assert_eq!(
        line("memory ="),
        "memory = \"2GiB\" # environment TAILRACE_MEMORY"
    );
    assert_eq!(line("rack ="), "rack = \"r1\" # file t.toml");
    assert_eq!(line("node-id ="), "node-id = 1 # default");
}

#[test]
fn what_is_shown_is_a_config_file_with_the_same_meaning() {
    let s = resolve(&[
        ("kafka-addr", "[::1]:0"),
        ("data-dir", "/a \"b\"\\c"),
        ("memory", "1234567890"),
    ])
    .unwrap();
    let file = parse_file(&s.show(), Path::new("shown.toml")).unwrap();
    let again = Settings::resolve(&[file], MACHINE).unwrap();
    assert_eq!(again.data_dir, s.data_dir);
    assert_eq!(again.kafka_addr, s.kafka_addr);
    assert_eq!(again.advertise, s.advertise);
    assert_eq!(again.memory_bytes, s.memory_bytes);
}

#[test]
fn unknown_keys_and_wrong_types_in_the_file_are_refused() {
    let path = Path::new("t.toml");
    for (text, part) in [
        ("shardz = 1", "no setting 'shardz'; did you mean shards?"),
        ("zookeeper = 1", "there are data-dir,"),
        ("[shards]\nn = 1", "shards can't be of the type table"),
        ("shards = [1]", "can't be of the type array"),
        ("shards = ", "not valid TOML"),
    ] {
        let e = parse_file(text, path).unwrap_err().to_string();
        assert!(e.contains(part) && e.contains("t.toml"), "{e}");
    }
    let typed = parse_file(
        "shards = 2\noverprovisioned = true\nmemory = \"1GiB\"",
        path,
    )
    .unwrap();
    assert!(
        Settings::resolve(&[typed], MACHINE)
            .unwrap()
            .overprovisioned
    );
}

#[test]
fn bad_values_say_what_and_where() {
    for (key, value, part) in [
        ("shards", "0", "from 1 to"),
        ("shards", "x", "from 1 to"),
        ("memory", "lots", "a size like"),
        ("memory", "99999999999GiB", "a size like"),
        ("memory", "1MiB", "fewer shards"),
        ("memory", "9GiB", "less memory"),
        ("admin-addr", "127.0.0.1:9092", "each its own"),
        ("admin-addr", "[::]:9092", "each its own"),
        ("log", "bogus", "one of off"),
        ("log", "enigne=debug", "no part"),
        ("kafka-addr", "9092", "host:port"),
        ("kafka-addr", "::1:9092", "brackets"),
        ("kafka-addr", "0.0.0.0:9092", "set advertise"),
        ("advertise", "host", "host:port"),
        ("advertise", ":1", "host:port"),
        ("overprovisioned", "maybe", "true or false"),
        ("num-partitions", "0", "from 1 to"),
        ("node-id", "-1", "from 0 to"),
        ("data-dir", "", "empty"),
    ] {
        let e = resolve(&[(key, value)]).unwrap_err().to_string();
        assert!(e.contains(part), "{key}={value}: {e}");
    }
    let e = resolve(&[("shards", "0")]).unwrap_err().to_string();
    assert!(e.contains("flag --x"), "{e}");
    let open = resolve(&[
        ("kafka-addr", "0.0.0.0:9092"),
        ("advertise", "me.example:19092"),
    ])
    .unwrap();
    assert_eq!(open.advertise, ("me.example".to_string(), 19092));
}

#[test]
fn a_node_that_nobody_could_connect_to_is_refused() {
    for name in [
        "max-connections",
        "max-connections-per-ip",
        "max-connection-creation-rate",
    ] {
        let why = resolve(&[(name, "0")]).unwrap_err().to_string();
        assert!(why.contains(name) && why.contains("leave it out"), "{why}");
        assert!(resolve(&[(name, "1")]).is_ok());
    }
    let excepted = [
        ("max-connections-per-ip", "0"),
        ("max-connections-per-ip-overrides", "10.0.0.1:5"),
    ];
    assert!(resolve(&excepted).is_ok());
}
