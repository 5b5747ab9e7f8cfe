from pgfed.cli import main

main()
