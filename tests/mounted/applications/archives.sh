# unzip of many small files (C80), and rsync of 9,000 files beside a log that grows while another process reads it (C94).
work() {
    local begin end
    python3 - "${FILES:-15000}" <<'PYTHON'
import sys, zipfile
with zipfile.ZipFile("many.zip", "w", zipfile.ZIP_DEFLATED) as archive:
    for number in range(int(sys.argv[1])):
        archive.writestr(f"many/d{number % 100}/file-{number}", f"{number} " * (number % 700))
PYTHON
    begin=$(date +%s%N)
    unzip -q many.zip
    end=$(date +%s%N)
    echo "unzip: $((${FILES:-15000} * 1000000000 / (end - begin))) files/s" >&2
    append & local appending=$!
    follow & local following=$!
    rsync -aHAX many/ copy/
    : >stop
    wait $appending
    wait $following
}

append() {
    local number=0
    while ! test -e stop; do number=$((number + 1)); printf 'line %09d\n' "$number" >>log; done
}

# Every line is whole whenever it is read.
follow() {
    python3 - <<'PYTHON'
import os
expected, rest = 1, b""
while not os.path.exists("log"):
    pass
with open("log", "rb", buffering=0) as log:
    while True:
        is_last = os.path.exists("stop")
        rest += log.read()
        *lines, rest = rest.split(b"\n")
        for line in lines:
            assert line == b"line %09d" % expected, (line, expected)
            expected += 1
        if is_last and not lines:
            break
assert not rest, rest
PYTHON
}

look() {
    test "$(find many -type f | wc -l)" = "${FILES:-15000}"
    unzip -tq many.zip >&2
    test -z "$(rsync -naHAX --checksum --delete --itemize-changes many/ copy/)"
    python3 -c '
import zipfile
with zipfile.ZipFile("many.zip") as archive:
    for name in archive.namelist():
        with open(name, "rb") as file:
            assert file.read() == archive.read(name), name
number = 0
for number, line in enumerate(open("log"), 1):
    assert line == f"line {number:09d}\n", line
assert number > 100'
}
