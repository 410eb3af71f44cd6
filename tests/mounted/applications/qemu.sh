# qemu's tools: images in qcow2 and raw on O_DIRECT with each of its three ways of asynchronous I/O, snapshots, conversion.
engines="native io_uring threads"

# One image, written and read back in pieces of many sizes; 1g of it is more than is written, so that clusters are allocated.
image() {
    local engine=$1 format=$2 file=$2-$1 at
    local io=(qemu-io -f "$format" -t none -i "$engine")
    qemu-img create -q -f "$format" "$file" 1G
    local commands=()
    for at in $(seq 0 29); do
        commands+=(-c "aio_write -q -P $((at + 1)) $((at * 9437184)) $((65536 + at * 4096))")
    done
    "${io[@]}" "${commands[@]}" -c aio_flush -c "write -q -z 9437184 4096" -c "discard -q 18874368 4096" -c flush "$file"
    test "$format" = raw || qemu-img check -q "$file"
}

verify() {
    local engine=$1 format=$2 file=$2-$1 at
    local commands=()
    for at in 0 $(seq 3 29); do
        commands+=(-c "read -q -P $((at + 1)) $((at * 9437184)) $((65536 + at * 4096))")
    done
    commands+=(-c "read -q -P 0 9437184 4096" -c "read -q -P 2 9441280 65536" -c "read -q -P 0 9000000 100000")
    # It prints what differs and goes on.
    local found
    found=$(qemu-io -r -f "$format" -t none -i "$engine" "${commands[@]}" "$file" 2>&1)
    test -z "$found" || { echo "$file: $found" >&2; return 1; }
}

work() {
    local engine
    for engine in $engines; do
        image "$engine" qcow2
        image "$engine" raw
        qemu-img bench -q -w -f qcow2 -t none -i "$engine" -c 4000 -d 32 -s 4096 -o 536870912 "qcow2-$engine" >/dev/null
        qemu-img bench -q -w -f raw -t none -i "$engine" -c 4000 -d 32 -s 4096 -S 8192 -o 536870912 "raw-$engine" >/dev/null
    done
    qemu-img snapshot -c before qcow2-native
    qemu-io -f qcow2 -t none -i native -c "write -q -P 77 0 1M" qcow2-native
    qemu-img snapshot -a before qcow2-native
    qemu-img convert -f qcow2 -O raw -t none -T none qcow2-native converted-raw
    qemu-img convert -f raw -O qcow2 -c converted-raw converted-qcow2
}

look() {
    local engine
    for engine in $engines; do
        verify "$engine" qcow2
        verify "$engine" raw
        qemu-img check -q "qcow2-$engine"
    done
    qemu-img compare -q qcow2-native converted-raw
    qemu-img compare -q qcow2-native converted-qcow2
    test "$(stat -c %b raw-native)" -lt 600000
}
