// Package ops checks what lies in the directory ops: the alert rules, the dashboard and the runbooks.
package ops
