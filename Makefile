# sumfs: everything that people and CI run. `make` lists the targets.

STORE  ?= /var/lib/sumfs/store
MNT    ?= /mnt/sumfs
PREFIX ?= /usr/local
SHARE  ?= $(PREFIX)/share
UNITS  ?= $(PREFIX)/lib/systemd/system
SEEDS  ?= 200
CUTS   ?= 200
SCHEDULES ?= 1000
DAMAGES ?= 5000
SECONDS ?= 60
ROUNDS ?= 3
SCALE ?= 100000
comma := ,
TARGET ?=
GROUP  ?= quick
# rustup's place is looked at too: sudo and su often leave it out of PATH.
CARGO  ?= $(or $(shell command -v cargo 2>/dev/null),$(wildcard $(HOME)/.cargo/bin/cargo),cargo)
TARGET_DIR ?= $(or $(CARGO_TARGET_DIR),target)
SUMFS  := $(TARGET_DIR)/release/sumfs

.DEFAULT_GOAL := help
.PHONY: help deps build test mounted applications crash powercut detection fuzz shuttle stress xfstests lint fmt bench bench-compare scale install install-files uninstall mount

# $(call need,COMMAND,DEBIAN PACKAGES): installs the packages unless the command is there.
need = @command -v $(1) >/dev/null 2>&1 || { \
	command -v apt-get >/dev/null 2>&1 || { echo "$(1) is missing and there is no apt-get: install it ($(2)) and try again" >&2; exit 1; }; \
	test "$$(id -u)" = 0 || { echo "$(1) is missing; as root: apt-get install $(2)" >&2; exit 1; }; \
	apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq $(2); }

help: ## List the targets
	@echo "Targets (STORE=$(STORE) MNT=$(MNT) PREFIX=$(PREFIX) SEEDS=$(SEEDS) CUTS=$(CUTS) DAMAGES=$(DAMAGES) SCHEDULES=$(SCHEDULES) SECONDS=$(SECONDS) ROUNDS=$(ROUNDS) SCALE=$(SCALE)):"
	@sed -n 's/^\([a-z-]*\):.*## /  \1	/p' $(MAKEFILE_LIST) | expand -t 18

deps: ## Install what building needs (Debian packages by name; Rust must be there)
	@command -v $(CARGO) >/dev/null 2>&1 || { \
		echo "cargo is missing: install Rust 1.90 or newer, for instance with the installer at https://rustup.rs" >&2; exit 1; }
	$(call need,cc,gcc libc6-dev)

build: deps ## Build the program: target/release/sumfs
	$(CARGO) build --release

test: deps ## All tests: unit, in process, and (as root) on real mounts
	$(call need,python3,python3)
	$(call need,mkfs.ext4,e2fsprogs)
	$(call need,mkfs.xfs,xfsprogs)
	$(call need,fio,fio)
	$(call need,git,git)
	$(call need,unzip,unzip)
	$(call need,fusermount3,fuse3)
	$(CARGO) test --release

mounted: deps ## Only the tests on real mounts; as root
	$(call need,python3,python3)
	$(call need,mkfs.ext4,e2fsprogs)
	$(call need,mkfs.xfs,xfsprogs)
	$(call need,fio,fio)
	$(call need,git,git)
	$(call need,unzip,unzip)
	$(call need,fusermount3,fuse3)
	$(CARGO) test --release --test mounted

crash: deps ## Only the simulated power cuts; SEEDS= says how many
	SEEDS=$(SEEDS) $(CARGO) test --release --test in_process crash -- --nocapture

powercut: deps ## Only the power cuts of the whole program, on ext4; CUTS= says how many; as root
	$(call need,mkfs.ext4,e2fsprogs)
	CUTS=$(CUTS) $(CARGO) test --release --test mounted power_cut -- --nocapture

detection: deps ## Only the proof that damage is found and repaired; DAMAGES= says how many
	DAMAGES=$(DAMAGES) $(CARGO) test --release --test in_process detection -- --nocapture

applications: deps ## Only the programs that people rely on, the long ones too (PostgreSQL, qemu-img, borg...); as root
	$(call need,python3,python3)
	$(call need,git,git)
	$(call need,rsync,rsync)
	$(call need,unzip,unzip)
	$(call need,setfattr,attr)
	$(call need,strip,binutils)
	$(call need,psql,postgresql)
	$(call need,pgrep,procps)
	$(call need,qemu-img,qemu-utils)
	$(call need,borg,borgbackup)
	$(call need,restic,restic)
	$(call need,dbench,dbench)
	$(call need,bonnie++,bonnie++)
	$(call need,fio,fio)
	$(call need,vim,vim)
	$(call need,inotifywait,inotify-tools)
	$(CARGO) test --release --test mounted applications:: -- --include-ignored --nocapture

fuzz: deps ## Hostile stores; SECONDS= for each target, TARGET= only one: superblock, label, record, journal, index, mount
	FUZZ_SECONDS=$(SECONDS) FUZZ_TARGET=$(TARGET) CARGO_PROFILE_RELEASE_OVERFLOW_CHECKS=true \
		CARGO_PROFILE_RELEASE_DEBUG_ASSERTIONS=true $(CARGO) test --release --target-dir $(TARGET_DIR)/fuzz --test fuzz

shuttle: deps ## Only the models of threads; SCHEDULES= says how many schedules each gets
	CARGO_PROFILE_RELEASE_DEBUG_ASSERTIONS=true SCHEDULES=$(SCHEDULES) \
		$(CARGO) test --release --target-dir $(TARGET_DIR)/shuttle --features shuttle --test shuttle

stress: deps ## Only the stress of all operations at once, lock ranks asserted; SECONDS= says how long
	CARGO_PROFILE_RELEASE_DEBUG_ASSERTIONS=true STRESS_SECONDS=$(SECONDS) \
		$(CARGO) test --release --target-dir $(TARGET_DIR)/asserted --test in_process stress -- --nocapture

xfstests: build ## xfstests on a mount: XFSTESTS_DIR= a built checkout of it, GROUP= its tests, CACHE= none, writeback or (without) both; as root
	XFSTESTS_DIR="$(XFSTESTS_DIR)" SUMFS=$(SUMFS) xfstests-config/run.sh -g $(GROUP)

lint: deps ## Formatting, clippy, documentation: no warning passes
	$(CARGO) fmt --check
	$(CARGO) clippy --all-targets -- -D warnings
	RUSTDOCFLAGS="-D warnings" $(CARGO) doc --no-deps

fmt: ## Format the sources
	$(CARGO) fmt

bench: build ## All benchmarks, each with the command that made it, then a comparison with btrfs; as root
	$(call need,fio,fio)
	$(call need,mkfs.btrfs,btrfs-progs)
	for name in nowait direct readers loop_device micro submission; do TMPDIR="$${BENCH_DIR:-/dev/shm}" $(CARGO) bench -q --bench $$name || exit 1; done
	python3 tests/bench/compare.py --bin $(SUMFS) --fs sumfs,btrfs

bench-compare: build ## The comparison alone; stores the ratios and prints what changed since the last time; ROUNDS= says how often; as root
	$(call need,fio,fio)
	$(call need,mkfs.btrfs,btrfs-progs)
	python3 tests/bench/compare.py --bin $(SUMFS) --fs sumfs,btrfs$(if $(CEILING),$(comma)ceiling) --rounds $(ROUNDS) \
		--keep $(TARGET_DIR)/bench-compare

scale: build ## Large trees, directories and files on a mount, memory, mount times; SCALE= says how large (1000000); as root
	TMPDIR="$${BENCH_DIR:-/dev/shm}" SCALE=$(SCALE) $(CARGO) bench -q --bench scale

install: build install-files ## Install the program, mount.fuse.sumfs for mount(8), man pages, completions, the scrub timer

install-files:
	install -D -m 755 $(SUMFS) $(DESTDIR)$(PREFIX)/bin/sumfs
	install -d $(DESTDIR)/sbin $(DESTDIR)$(SHARE)/bash-completion/completions $(DESTDIR)$(SHARE)/zsh/site-functions $(DESTDIR)$(SHARE)/fish/vendor_completions.d
	ln -sf $(PREFIX)/bin/sumfs $(DESTDIR)/sbin/mount.fuse.sumfs
	$(SUMFS) man --dir $(DESTDIR)$(SHARE)/man/man1
	$(SUMFS) completions bash > $(DESTDIR)$(SHARE)/bash-completion/completions/sumfs
	$(SUMFS) completions zsh > $(DESTDIR)$(SHARE)/zsh/site-functions/_sumfs
	$(SUMFS) completions fish > $(DESTDIR)$(SHARE)/fish/vendor_completions.d/sumfs.fish
	$(SUMFS) systemd-units --dir $(DESTDIR)$(UNITS) --program $(PREFIX)/bin/sumfs
	rm -f $(DESTDIR)$(UNITS)/mnt-sumfs.mount $(DESTDIR)$(UNITS)/mnt-sumfs.automount

uninstall: ## Remove what install put in place
	rm -f $(DESTDIR)$(PREFIX)/bin/sumfs $(DESTDIR)/sbin/mount.fuse.sumfs $(DESTDIR)$(UNITS)/sumfs-scrub@.service $(DESTDIR)$(UNITS)/sumfs-scrub@.timer
	rm -f $(DESTDIR)$(SHARE)/man/man1/sumfs.1 $(DESTDIR)$(SHARE)/man/man1/sumfs-*.1 $(DESTDIR)$(SHARE)/bash-completion/completions/sumfs
	rm -f $(DESTDIR)$(SHARE)/zsh/site-functions/_sumfs $(DESTDIR)$(SHARE)/fish/vendor_completions.d/sumfs.fish

mount: build ## Make a store in STORE if there is none and mount it on MNT; as root
	@test "$$(id -u)" = 0 || { echo "make mount needs root" >&2; exit 1; }
	@test -d "$(STORE)" || { mkdir -p "$$(dirname "$(STORE)")" && $(SUMFS) mkfs "$(STORE)"; }
	@mkdir -p "$(MNT)"
	@if findmnt -n -t fuse.sumfs "$(MNT)" >/dev/null; then echo "$(MNT) is mounted already."; else $(SUMFS) mount "$(STORE)" "$(MNT)"; fi
	@echo
	@echo "The store $(STORE) is mounted on $(MNT). Use it like any directory, for instance:"
	@echo "    cp -a /usr/share/doc $(MNT)/"
	@echo "    $(SUMFS) info $(MNT)"
	@echo "    $(SUMFS) stats $(MNT)"
	@echo "Unmount it, and check it if you like, with:"
	@echo "    $(SUMFS) umount $(MNT)"
	@echo "    $(SUMFS) check --data $(STORE)"
	@echo "Mount it again with:"
	@echo "    $(SUMFS) mount $(STORE) $(MNT)"
