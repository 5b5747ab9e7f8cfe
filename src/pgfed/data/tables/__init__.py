"""Tables (csv, parquet): their schema, how it is proposed, read, and made numbers of."""
