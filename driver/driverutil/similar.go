package driverutil

import "strings"

// FindSimilar returns the word that was probably meant by a mistyped one: that of the known words with the fewest
// letters to change, add, remove or swap, or one of which it is the beginning. It is empty if more than a third of
// the letters differ.
func FindSimilar(word string, known ...string) (similar string) {
	least := max(1, len(word)/3) + 1
	for _, k := range known {
		d := editDistance(word, k)
		if len(word) > 2 && strings.HasPrefix(k, word) {
			d = min(d, 1)
		}
		if d < least {
			similar, least = k, d
		}
	}
	return similar
}

// editDistance is how many letters of a must be changed, added, removed, or swapped with the next one, to make b of it.
func editDistance(a, b string) int {
	var beforeLast, last []int
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := 1; i <= len(a); i++ {
		beforeLast, last, row = last, row, make([]int, len(b)+1)
		row[0] = i
		for j := 1; j <= len(b); j++ {
			changed := last[j-1]
			if a[i-1] != b[j-1] {
				changed++
			}
			row[j] = min(changed, last[j]+1, row[j-1]+1)
			if i > 1 && j > 1 && a[i-1] == b[j-2] && a[i-2] == b[j-1] {
				row[j] = min(row[j], beforeLast[j-2]+1)
			}
		}
	}
	return row[len(b)]
}
