package driverutil

import (
	"strconv"
	"strings"
)

// FormatPermits makes a text of the numbers of permits, such as "0,3".
func FormatPermits(numbers []int64) string {
	var text []byte
	for i, n := range numbers {
		if i > 0 {
			text = append(text, ',')
		}
		text = strconv.AppendInt(text, n, 10)
	}
	return string(text)
}

// ParsePermits reads what FormatPermits has made. It returns nil if the text is empty, or is nothing like that.
func ParsePermits(text string) (numbers []int64) {
	if text == "" {
		return nil
	}
	for _, part := range strings.Split(text, ",") {
		n, err := strconv.ParseInt(part, 10, 64)
		if err != nil || n < 0 || len(numbers) > 0 && n <= numbers[len(numbers)-1] {
			return nil
		}
		numbers = append(numbers, n)
	}
	return numbers
}
