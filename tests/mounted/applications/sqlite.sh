# SQLite, see the Python program.
work() { python3 "$APPLICATIONS/sqlite.py" work "${SECONDS_EACH:-1}"; }

look() { python3 "$APPLICATIONS/sqlite.py" look; }
