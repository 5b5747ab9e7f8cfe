from pgfed.cli.app import main

main()
