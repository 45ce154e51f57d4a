//! With the feature `link`: compiles the shim around DPDK's inline functions, generates the
//! declarations of what the crate calls, and links to the libraries that pkg-config names. Without
//! it: nothing.

fn main() {
    #[cfg(feature = "link")]
    link::build();
}

#[cfg(feature = "link")]
mod link {
    use std::path::PathBuf;
    use std::process::{Command, exit};

    /// Functions that are called; what they take and return follows.
    const FUNCTIONS: &str = "fenxi_.*|rte_eal_(init|cleanup)|rte_openlog_stream\
        |rte_log_(set_global_level|cur_msg_loglevel)|rte_thread_(un)?register\
        |rte_memzone_reserve_aligned|rte_mem_virt2iova\
        |rte_pktmbuf_(pool_create(_extbuf)?|free_bulk)\
        |rte_eth_dev_(get_port_by_name|get_name_by_port|info_get|configure\
        |adjust_nb_rx_tx_desc|get_mtu|socket_id|start|stop|close|is_removed|rss_reta_update)\
        |rte_eth_(rx|tx)_queue_setup|rte_eth_promiscuous_(en|dis)able\
        |rte_eth_link_get_nowait|rte_eth_stats_(get|reset)|rte_eth_find_next";
    /// Constants that are used.
    const CONSTANTS: &str = "RTE_LOG_.*|SOCKET_ID_ANY|RTE_PKTMBUF_HEADROOM|RTE_MAX_ETHPORTS\
        |RTE_ETH_NAME_MAX_LEN|RTE_ETH_RETA_GROUP_SIZE";

    pub fn build() {
        for file in ["src/shim.c", "src/shim.h"] {
            println!("cargo:rerun-if-changed={file}");
        }
        let flags = pkg_config(&["--cflags"]);
        let mut shim = cc::Build::new();
        shim.file("src/shim.c").opt_level(3).warnings(false);
        for flag in &flags {
            shim.flag(flag);
        }
        shim.compile("fenxi_dpdk");
        bindings(&flags);
        // After the shim, which needs them.
        for library in pkg_config(&["--libs"]) {
            if let Some(folder) = library.strip_prefix("-L") {
                println!("cargo:rustc-link-search=native={folder}");
            } else if let Some(name) = library.strip_prefix("-l") {
                // Drivers are loaded by DPDK itself; these are the libraries that are called.
                if ["rte_eal", "rte_ethdev", "rte_mbuf", "rte_mempool", "rte_ring"].contains(&name)
                {
                    println!("cargo:rustc-link-lib={name}");
                }
            }
        }
    }

    fn bindings(flags: &[String]) {
        let made = bindgen::Builder::default()
            .header("src/shim.h")
            .clang_args(flags)
            .allowlist_function(FUNCTIONS)
            .allowlist_var(CONSTANTS)
            // Never looked into from Rust; the packed ones among what they hold have no form there.
            .opaque_type("rte_mbuf|rte_mempool|_IO_FILE")
            .derive_default(true)
            .layout_tests(false)
            .generate_comments(false)
            .rust_edition(bindgen::RustEdition::Edition2024)
            .generate();
        let bindings = made.unwrap_or_else(|error| fail(&format!("bindgen: {error}")));
        let out = PathBuf::from(std::env::var_os("OUT_DIR").unwrap_or_default());
        if let Err(error) = bindings.write_to_file(out.join("bindings.rs")) {
            fail(&error.to_string());
        }
    }

    /// What pkg-config says of libdpdk, word by word.
    fn pkg_config(options: &[&str]) -> Vec<String> {
        let program = std::env::var("PKG_CONFIG").unwrap_or("pkg-config".to_owned());
        let output = Command::new(&program).args(options).arg("libdpdk").output();
        match output {
            Ok(output) if output.status.success() => {
                let words = String::from_utf8_lossy(&output.stdout);
                words.split_whitespace().map(str::to_owned).collect()
            }
            Ok(_) => fail("pkg-config finds no libdpdk; install libdpdk-dev"),
            Err(error) => fail(&format!("{program}: {error}; install pkg-config")),
        }
    }

    fn fail(why: &str) -> ! {
        eprintln!("dpdk: {why}");
        exit(1);
    }
}
