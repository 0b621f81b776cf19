"""The last part of the runner, for an interpreter that is started for one candidate."""

main(*sys.argv[1:])
