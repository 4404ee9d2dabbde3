"""Control calls: made by the coordinator in every process, in one order, and recorded."""
