# vim: writes with a backup beside, swap and undo files, for both meanings of backupcopy (C92).
edit() { vim -u NONE -i NONE -n -es "$@" </dev/null; }

work() {
    local copy
    mkdir undo
    for copy in yes no; do
        seq 1000 >"text-$copy" && chmod 640 "text-$copy" && chown 1234:2345 "text-$copy" && ln "text-$copy" "other-$copy"
        local before after
        before=$(stat -c %i "text-$copy")
        vim -u NONE -i NONE -es -c "set backup writebackup undofile undodir=undo directory=. backupcopy=$copy" \
            -c "edit text-$copy" -c '%s/^5/five /' -c 'write' -c '1delete' -c 'write' -c 'quit' </dev/null
        after=$(stat -c %i "text-$copy")
        if test "$copy" = yes; then test "$before" = "$after"; else test "$before" != "$after"; fi
    done
    for size in 1 4096 1000000; do
        head -c "$size" /dev/zero | tr '\0' x >"long-$size"
        edit -c 'normal Amore' -c wq "long-$size"
    done
}

look() {
    local copy
    for copy in yes no; do
        test "$(head -1 "text-$copy")" = 2
        test "$(grep -c '^five ' "text-$copy")" = 111
        test "$(stat -c '%a %u %g' "text-$copy")" = "640 1234 2345"
        test "$(wc -l <"text-$copy~")" = 1000
    done
    # One keeps the file, the other makes a new one and leaves the old one to its other name.
    cmp text-yes other-yes
    test "$(wc -l <other-no)" = 1000
    test "$(wc -c <long-1000000)" = 1000005
    test "$(ls undo | wc -l)" = 2
    test -z "$(find . -name '*.swp')"
}
