# inotifywait sees what happens through the same mount (C86).
work() {
    mkdir watched other
    inotifywait -m -q -r --format '%e %f' watched >events 2>errors &
    local watcher=$!
    # It watches when its first event arrives.
    until grep -q probe events; do touch watched/probe; done
    echo one >watched/new
    echo two >>watched/new
    chmod 600 watched/new
    mv watched/new watched/moved
    mv watched/moved other/away
    mv other/away watched/back
    ln watched/back watched/link
    mkdir watched/directory
    rmdir watched/directory
    rm watched/back
    touch watched/last
    until grep -q last events; do :; done
    kill $watcher
}

look() {
    local event
    for event in 'CREATE new' 'MODIFY new' 'CLOSE_WRITE,CLOSE new' 'ATTRIB new' 'MOVED_FROM new' 'MOVED_TO moved' 'MOVED_FROM moved' \
        'MOVED_TO back' 'CREATE link' 'CREATE,ISDIR directory' 'DELETE,ISDIR directory' 'DELETE back'; do
        grep -qxF "$event" events || { echo "no $event in:" >&2; cat events >&2; return 1; }
    done
}
