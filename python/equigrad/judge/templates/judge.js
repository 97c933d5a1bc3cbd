// Behind reports/templates/page.js: buttons that copy a script.
(function(){
'use strict';
var said=document.createElement('p');said.className='vh';said.setAttribute('role','status');document.body.appendChild(said);
var select=function(pre){var range=document.createRange();range.selectNodeContents(pre);
var now=getSelection();now.removeAllRanges();now.addRange(range);};
Array.prototype.forEach.call(document.querySelectorAll('.code'),function(box){
var pre=box.querySelector('pre'),button=document.createElement('button');
button.type='button';button.textContent='Copy';
button.setAttribute('aria-label','Copy the '+pre.getAttribute('aria-label').toLowerCase());
var done=function(ok){button.textContent=ok?'Copied':'Press Ctrl+C';
said.textContent=ok?'The script was copied':'Press Control C to copy';
if(!ok)select(pre);setTimeout(function(){button.textContent='Copy';},2500);};
button.onclick=function(){
if(navigator.clipboard&&isSecureContext)navigator.clipboard.writeText(pre.textContent)
.then(function(){done(true);},function(){done(false);});
else{select(pre);var ok=false;try{ok=document.execCommand('copy');}catch(e){}done(ok);}};
box.insertBefore(button,pre);});
})();
